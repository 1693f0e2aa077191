// Calibration text that the model writes itself: what it expects to see, at temperature 1.
#pragma once
#include <functional>
#include <memory>

#include "ranks/ranks.h"
#include "runtime/dataset.h"
#include "runtime/runner.h"

namespace fidelio {

// `tokens` tokens in sequences of `context`, each begun with the first few of a sequence of `text` (spread over all of
// them, so that every sample starts somewhere else) and continued by the model with 16-bit activations. The same seed
// gives the same tokens, however many sequences are written side by side; the random numbers of a sequence are its own.
// Several ranks write some each, and have all. Makes a runner of the model (device and cache as in `serving`), and drops
// it.
std::vector<std::vector<int32_t>> sample_sequences(
    const std::function<std::unique_ptr<Runner>(const RunnerOptions&)>& make_runner, const RunnerOptions& serving,
    std::span<const std::vector<int32_t>> text, int64_t tokens, int64_t context, uint64_t seed,
    int64_t side_by_side = 32, const Ranks& ranks = Ranks());

}  // namespace fidelio
