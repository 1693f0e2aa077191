// Scheduler: who runs, and which rows a step computes. Pure: it sees neither the model nor what is sampled.
//
//   waiting ──admit──▶ running: chunks of the prompt ─▶ one row a step and drafted ones ──remove──▶
//      ▲                  │
//      └────preempt───────┘  the youngest, when the cache is full: its pages go, its tokens stay
//
// First come, first served: a request that does not fit yet is not overtaken. A request is admitted when the cache has
// pages for its tokens so far and one more for each that runs; what it will write is not reserved. The oldest is never
// preempted for a younger one, and alone it fits the cache (Engine::add checks it), so it always ends.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "runtime/page_table.h"

namespace fidelio {

struct SchedulerLimits {
  int64_t max_rows = 0;        // of a step
  int64_t max_logit_rows = 0;  // of those, whose logits are computed
  int64_t max_sequences = 0;   // running at once, at most max_rows
  int64_t cache_pages = 0;
  bool reuse_prefixes = true;
  // Whether a prompt row and an output row of the same token leave the same bits in the cache: then an answer's pages
  // serve the next prompt that quotes it, else only rows of one kind replace each other.
  bool kinds_agree = true;
};

class Scheduler {
 public:
  // Rows [first, first + rows) of a sequence whose logits are the batch's next. last: the newest token's is among them.
  struct Chunk {
    Sequence* sequence;
    int64_t first, rows;
    bool last;
  };
  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits), pages_(limits.cache_pages) {}

  void add(Sequence* sequence) { waiting_.push_back(sequence); }
  void remove(Sequence* sequence);  // ended or cancelled, wherever it is

  // Those that decode in this step, the oldest first: each has a page for its row, others were preempted if need be.
  // Then admits who fits. Valid until the next call.
  std::span<Sequence* const> decoding();
  // Pages for `rows` rows of a sequence that decodes: how many rows of those have them. Preempts nobody.
  int64_t room_for(const Sequence& sequence, int64_t rows);
  // Appends rows of what does not decode yet to a batch that holds the step's output rows, as far as they fit, and
  // counts them as fed. Returns those with logits: of a sequence's last row, or of all where the prompt is scored.
  std::span<const Chunk> append_chunks(Batch& batch);
  // After a step: rows up to `fed` are final and may be reused, what drafts had beyond is given back.
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
  std::vector<int32_t> keys_;        // tokens as pages are known by
  int64_t preemptions_ = 0, reused_tokens_ = 0;
};

}  // namespace fidelio
