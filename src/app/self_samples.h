// Calibration text that the model writes itself: what it expects to see, at temperature 1.
#pragma once
#include "app/common.h"
#include "runtime/dataset.h"

namespace fidelio::app {

// `tokens` tokens in sequences of `context`, each begun with the first few of a sequence of `text` (spread over all of
// them, so that every sample starts somewhere else) and continued by the model with 16-bit activations. The same seed
// gives the same tokens; the random numbers of a sequence are its own. Makes a runner of its own, and drops it.
std::vector<std::vector<int32_t>> sample_sequences(const RunOptions& run, const Checkpoint& source,
                                                   std::span<const std::vector<int32_t>> text, int64_t tokens,
                                                   int64_t context, uint64_t seed);

}  // namespace fidelio::app
