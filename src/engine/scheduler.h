// The Scheduler decides which sequences run, and which rows a step computes. It is pure: it sees neither the model
// nor what is sampled.
//
//   waiting ──admit──▶ running: chunks of the prompt ─▶ one row a step and drafted ones ──remove──▶
//      ▲                  │
//      └────preempt───────┘  the youngest, when the cache is full: its pages go, its tokens stay
//
// Requests are served in the order in which they come: one that does not fit yet is not overtaken. A request is
// admitted when the cache has pages for its tokens so far, and one more for each running sequence. The pages for what
// it will write are not reserved. The oldest sequence is never preempted for a younger one, and alone it fits the
// cache (Engine::add checks that), so it always ends.
//
// Where a model keeps states (step/state.h), a running sequence holds the slot of its state, and there are at least as
// many slots as running sequences. Prompts are cut at multiples of kStateChunk, and what is left of one behind the last
// of these is computed as output rows: a prompt row is always one of a whole chunk. Snapshots are kept at these
// boundaries as far as there are slots, and drafts take slots that nothing else needs.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "runtime/page_table.h"

namespace fidelio {

struct SchedulerLimits {
  int64_t max_rows = 0;        // the most rows of a step
  int64_t max_logit_rows = 0;  // the most rows of a step whose logits are computed
  int64_t max_sequences = 0;   // sequences running at once, at most max_rows
  int64_t cache_pages = 0;
  int64_t state_slots = 0;  // 0 for a model that keeps no state; otherwise at least max_sequences
  bool reuse_prefixes = true;
  // This says whether a prompt row and an output row of the same token leave the same bits in the cache. If so, an
  // answer's pages can serve the next prompt that quotes it; otherwise only rows of the same kind can replace each
  // other.
  bool kinds_agree = true;
};

class Scheduler {
 public:
  // A Chunk is rows [first, first + rows) of a sequence, whose logits are the batch's next ones. `last` says that the
  // newest token's row is among them.
  struct Chunk {
    Sequence* sequence;
    int64_t first, rows;
    bool last;
  };
  explicit Scheduler(const SchedulerLimits& limits)
      : limits_(limits),
        states_(limits.state_slots),
        pages_(limits.cache_pages, limits.state_slots > 0 ? &states_ : nullptr) {}

  void add(Sequence* sequence) { waiting_.push_back(sequence); }
  void remove(Sequence* sequence);  // removes a sequence that ended or was cancelled, wherever it is

  // Returns the sequences that decode in this step, the oldest first. Each has a page for its row; others are
  // preempted if necessary. Then admits waiting sequences. The result is valid until the next call.
  std::span<Sequence* const> decoding();
  // Gets pages, and slots for states, for up to `rows` rows of a sequence that decodes, without preempting any. Returns
  // how many rows have them.
  int64_t room_for(Sequence& sequence, int64_t rows);
  // Appends the row of the newest token of a sequence that decodes, `drafts` tokens of which are drafted, for a step
  // that drafts the next.
  void append_draft(Batch& batch, Sequence& sequence, int64_t drafts);
  // Appends the rows of a sequence that decodes from `fed` on, whose logits are all wanted, to be verified.
  void append_output(Batch& batch, Sequence& sequence, int64_t rows);
  // Appends rows of sequences that do not decode yet to a batch that holds the step's output rows, as far as they fit
  // and have slots for their states, and counts them as fed. Returns the chunks with logits: those of a sequence's last
  // row, or all rows if the prompt is scored.
  std::span<const Chunk> append_chunks(Batch& batch);
  // After a step, rows up to `fed` are final and may be reused; pages and slots beyond them, which drafts used, are
  // freed.
  void settle(Sequence& sequence);

  const std::vector<int32_t>& pages(const Sequence& sequence) const { return pages_.pages(sequence.number); }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t free_pages() const { return pages_.free_pages(); }
  int64_t preemptions() const { return preemptions_; }
  int64_t reused_tokens() const { return reused_tokens_; }
  int64_t state_slots() const { return states_.slots(); }
  int64_t snapshots() const { return pages_.snapshots(); }
  // Slots that no sequence holds, those of snapshots included.
  int64_t free_states() const { return states_.free_slots() + pages_.free_snapshots(); }

 private:
  void admit();
  void preempt(Sequence* sequence);
  bool make_room(const Sequence& sequence, int64_t tokens);
  std::span<const int32_t> keys_of(const Sequence& sequence, int64_t count);

  bool keeps_states() const { return limits_.state_slots > 0; }
  // Returns the end of the rows of a sequence that are prompt rows.
  int64_t prompt_end(const Sequence& sequence) const;
  bool publishes(const Sequence& sequence, int64_t count) const;
  void publish(Sequence& sequence, int64_t count, int32_t slot);
  bool needs_slot(const Sequence& sequence) const;
  int32_t take_slot();
  int32_t own_slot(Sequence& sequence);
  bool append_chunk(Batch& batch, Sequence& sequence, int64_t rows, int64_t wanted, RowKind kind);
  void release_states(Sequence& sequence);

  SchedulerLimits limits_;
  StateTable states_;
  PageTable pages_;
  std::vector<int32_t> retired_;     // slots that rows of the step under way begin from, and that nobody needs after it
  std::deque<Sequence*> waiting_;    // the oldest first
  std::vector<Sequence*> running_;   // the oldest first
  std::vector<Sequence*> decoding_;  // what decoding() returns
  std::vector<Chunk> chunks_;        // what append_chunks() returns
  std::vector<int32_t> keys_;        // tokens as the page table knows them
  int64_t preemptions_ = 0, reused_tokens_ = 0;
};

}  // namespace fidelio
