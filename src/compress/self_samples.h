// This file lets a model write text itself. For calibration it samples at temperature 1, which gives the text that the
// model expects to see. For certificates it answers prompts, sampled as the model is used.
#pragma once
#include <functional>
#include <memory>

#include "engine/sampler.h"
#include "ranks/ranks.h"
#include "runtime/dataset.h"
#include "runtime/runner.h"

namespace fidelio {

// Returns `tokens` tokens in sequences of `context`. Each begins with the first few tokens of a sequence of `text`,
// spread over all of them, so that every sample starts somewhere else. The model continues it with 16-bit activations.
// The same seed gives the same tokens, however many sequences are written side by side, since each has its own random
// numbers. If there are several ranks, each writes some of the sequences and gets all. The function makes a runner of
// the model, with the device and cache of `serving`, and drops it.
std::vector<std::vector<int32_t>> sample_sequences(
    const std::function<std::unique_ptr<Runner>(const RunnerOptions&)>& make_runner, const RunnerOptions& serving,
    std::span<const std::vector<int32_t>> text, int64_t tokens, int64_t context, uint64_t seed,
    int64_t side_by_side = 32, const Ranks& ranks = Ranks());

struct OwnAnswer {
  std::vector<int32_t> ids;  // tokens of the prompt, then those of the answer
  int64_t given = 0;         // the number of tokens of the prompt
};
struct OwnAnswerOptions {
  SamplingOptions sampling{};       // with one seed; each answer has random numbers of its own
  std::vector<int32_t> stop_ids{};  // tokens that end an answer as its last token
  int64_t longest = 256;            // the most tokens of an answer
  int64_t context = 512;            // the most tokens of prompt and answer together
  int64_t side_by_side = 32;
};
// Returns one answer to each prompt, with 16-bit activations. The same seed gives the same answers, however many are
// written side by side. The function makes a runner of the model and drops it. Throws Error for a prompt that leaves no
// room.
std::vector<OwnAnswer> own_answers(const std::function<std::unique_ptr<Runner>(const RunnerOptions&)>& make_runner,
                                   const RunnerOptions& serving, std::span<const std::vector<int32_t>> prompts,
                                   const OwnAnswerOptions& how);

}  // namespace fidelio
