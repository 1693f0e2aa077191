// This file checks the batches that a runner is given, and cuts out of a batch the rows of one kind as a batch of
// their own. Some backends compute output rows and prompt rows by different families of kernels and need one step for
// each (Backend's kOneKindAStep).
#pragma once
#include <vector>

#include "runtime/runner.h"

namespace fidelio {

// Throws Error if a runner with these options has no room for the batch, or if the batch names tokens or pages that
// do not exist.
void check_batch(const Batch& batch, const ModelConfig& config, const RunnerOptions& options, int64_t cache_pages);

// Throws Error if the slots that the batch names are not there, or if a segment does not begin from a slot although its
// model keeps a state. `slots` is how many there are.
void check_states(const Batch& batch, const StateShape& shape, int64_t slots);

bool has_both_kinds(const Batch& batch);

// A BatchPart is the rows of one kind. rules() picks the rules of its logit rows from those of the whole batch, and
// put() writes its choices to their places among those of the whole.
struct BatchPart {
  Batch batch;
  std::vector<size_t> places;  // the places of its logit rows among those of the whole batch

  std::vector<ChoiceRule> rules(std::span<const ChoiceRule> of_whole) const;
  void put(std::span<const Choice> choices, std::span<Choice> of_whole) const;
};
// Fills `part` with the rows of this kind. The part keeps its memory.
void take_kind(const Batch& whole, RowKind kind, BatchPart& part);

// A FedBatch is what Runner::enqueue gives to a backend: a batch with all tokens that the host knows. For every other
// row, `from` is the index of the earlier choice that gives its token, and -1 for rows with a known token.
struct FedBatch {
  Batch batch;
  std::vector<int32_t> from;
};
void feed_known(const Batch& batch, std::span<const int32_t> from, std::span<const Choice> known, FedBatch& to);

}  // namespace fidelio
