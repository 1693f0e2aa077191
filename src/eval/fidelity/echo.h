// What a completions server returns for a prompt that it is asked to echo with log-probabilities: the contract of
// lm-evaluation-harness' local-completions ({"prompt": ids, "max_tokens": 1, "logprobs": n, "echo": true}). The harness
// sums token_logprobs[context:-1] and calls a text greedy where every one equals the largest of its top_logprobs
// exactly; its figures are then those of score_continuations().
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "eval/fidelity/logit_pass.h"

namespace fidelio {

struct EchoedToken {
  int32_t id = 0;
  double logprob = 0;                           // natural, given all tokens before it; NaN of the first
  std::vector<std::pair<int32_t, double>> top;  // the most likely ids there, best first, ties by id; empty of the first
};

// For each prompt its tokens, then one more: what greedy decoding says next, so that there are prompt size + 1. A
// logprob and the same token's in `top` are the same number. Throws Error if a prompt is empty or fills the context, or
// if `top` is less than 1 or more than the vocabulary.
std::vector<std::vector<EchoedToken>> echo(Runner& runner, std::span<const std::vector<int32_t>> prompts, int top,
                                           Activations mode, const ProgressCallback& progress = {});

}  // namespace fidelio
