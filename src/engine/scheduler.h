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
  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits), pages_(limits.cache_pages) {}

  void add(Sequence* sequence) { waiting_.push_back(sequence); }
  void remove(Sequence* sequence);  // removes a sequence that ended or was cancelled, wherever it is

  // Returns the sequences that decode in this step, the oldest first. Each has a page for its row; others are
  // preempted if necessary. Then admits waiting sequences. The result is valid until the next call.
  std::span<Sequence* const> decoding();
  // Gets pages for up to `rows` rows of a sequence that decodes, without preempting any. Returns how many rows have
  // pages.
  int64_t room_for(const Sequence& sequence, int64_t rows);
  // Appends rows of sequences that do not decode yet to a batch that holds the step's output rows, as far as they
  // fit, and counts them as fed. Returns the chunks with logits: those of a sequence's last row, or all rows if the
  // prompt is scored.
  std::span<const Chunk> append_chunks(Batch& batch);
  // After a step, rows up to `fed` are final and may be reused; pages beyond them, which drafts used, are freed.
  void settle(const Sequence& sequence);

  const std::vector<int32_t>& pages(const Sequence& sequence) const { return pages_.pages(sequence.number); }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t free_pages() const { return pages_.free_pages(); }
  int64_t preemptions() const { return preemptions_; }
  int64_t reused_tokens() const { return reused_tokens_; }

 private:
  void admit();
  void preempt(Sequence* sequence);
  bool make_room(const Sequence& sequence, int64_t tokens);
  std::span<const int32_t> keys_of(const Sequence& sequence, int64_t count);

  SchedulerLimits limits_;
  PageTable pages_;
  std::deque<Sequence*> waiting_;    // the oldest first
  std::vector<Sequence*> running_;   // the oldest first
  std::vector<Sequence*> decoding_;  // what decoding() returns
  std::vector<Chunk> chunks_;        // what append_chunks() returns
  std::vector<int32_t> keys_;        // tokens as the page table knows them
  int64_t preemptions_ = 0, reused_tokens_ = 0;
};

}  // namespace fidelio
