// This file computes what a completions server returns for a prompt that it is asked to echo with log-probabilities.
// The contract is that of lm-evaluation-harness' local-completions ({"prompt": ids, "max_tokens": 1, "logprobs": n,
// "echo": true}). The harness sums token_logprobs[context:-1] and calls a text greedy if every one of them equals the
// largest of its top_logprobs exactly. Its figures then equal those of score_continuations().
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "eval/fidelity/logit_pass.h"

namespace fidelio {

struct EchoedToken {
  int32_t id = 0;
  double logprob = 0;  // natural logarithm, given all tokens before it; NaN for the first token
  // The most likely ids at this position, best first and by id among equals. It is empty for the first token.
  std::vector<std::pair<int32_t, double>> top;
};

// Returns for each prompt its tokens and one more, which is the token that greedy decoding would say next; so there
// are prompt size + 1. The logprob of a token and its entry in `top` are the same number. Throws Error if a prompt is
// empty or fills the context, or if `top` is less than 1 or more than the vocabulary.
std::vector<std::vector<EchoedToken>> echo(Runner& runner, std::span<const std::vector<int32_t>> prompts, int top,
                                           Activations mode, const ProgressCallback& progress = {});

}  // namespace fidelio
