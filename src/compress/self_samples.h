// Text that the model writes itself: for calibration at temperature 1, what it expects to see; for certificates its answers
// to prompts, sampled as it is used.
#pragma once
#include <functional>
#include <memory>

#include "engine/sampler.h"
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

struct OwnAnswer {
  std::vector<int32_t> ids;  // the prompt's, then the answer's
  int64_t given = 0;         // how many are the prompt's
};
struct OwnAnswerOptions {
  SamplingOptions sampling{};       // its seed is that of all answers; each has random numbers of its own
  std::vector<int32_t> stop_ids{};  // end an answer, and are its last token
  int64_t longest = 256;            // tokens of an answer, at most
  int64_t context = 512;            // of prompt and answer
  int64_t side_by_side = 32;
};
// One answer to each prompt, with 16-bit activations. The same seed gives the same answers, however many are written side
// by side. Makes a runner of the model, and drops it. Throws Error for a prompt that leaves no room.
std::vector<OwnAnswer> own_answers(const std::function<std::unique_ptr<Runner>(const RunnerOptions&)>& make_runner,
                                   const RunnerOptions& serving, std::span<const std::vector<int32_t>> prompts,
                                   const OwnAnswerOptions& how);

}  // namespace fidelio
