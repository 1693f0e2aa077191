// Batches as runners take them: what is refused; and the rows that are of one kind as a batch of their own, for backends
// that compute output rows and prompt rows by kernels of different families, in two steps (Backend's kOneKindAStep).
#pragma once
#include <vector>

#include "runtime/runner.h"

namespace fidelio {

// Throws Error for a batch that a runner of these options has no room for, or of tokens and pages that are not there.
void check_batch(const Batch& batch, const ModelConfig& config, const RunnerOptions& options, int64_t cache_pages);

bool has_both_kinds(const Batch& batch);

struct BatchPart {
  Batch batch;
  std::vector<size_t> places;  // of its logit rows among those of the whole

  std::vector<ChoiceRule> rules(std::span<const ChoiceRule> of_whole) const;
  void put(std::span<const Choice> choices, std::span<Choice> of_whole) const;
};
// Fills `part`, which keeps its memory.
void take_kind(const Batch& whole, RowKind kind, BatchPart& part);

// Of Runner::enqueue: a batch with the tokens that the host knows, and of other rows whence their tokens come, else -1.
struct FedBatch {
  Batch batch;
  std::vector<int32_t> from;
};
void feed_known(const Batch& batch, std::span<const int32_t> from, std::span<const Choice> known, FedBatch& to);

}  // namespace fidelio
