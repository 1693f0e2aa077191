// This file holds what a request asks of its sampling, and makes the rule for one token from it (step/choice.h).
// The random number of a choice is a pure function of (seed, position). So a sampled token depends only on its
// request's seed, its tokens and its position; batching, preemption and speculation cannot change it.
//
// Speculation uses two functions of cpu::Chooser. choose() with the rule of (seed, position) is what plain decoding
// would choose there. Drafts that agree with it are accepted, so the text is that of plain decoding (drafter and
// verifier share the random number: Gumbel-coupled sampling, choice_race.h). distribution() returns what remains
// after the filters, as integer weights over their sum, for rejection sampling.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "step/choice.h"

namespace fidelio {

struct SamplingOptions {
  double temperature = 0;         // 0 is greedy, with the lowest id among equal logits
  int64_t top_k = 0;              // keeps the k most likely tokens; 0 keeps all
  double top_p = 1;               // keeps the smallest set of most likely tokens whose probabilities reach p
  double min_p = 0;               // keeps tokens at least min_p times as likely as the best
  double repetition_penalty = 1;  // for tokens of prompt and output: logit / r if positive, logit * r if negative
  double presence_penalty = 0;    // subtracted once from tokens that are already in the output
  double frequency_penalty = 0;   // subtracted once for each occurrence in the output
  std::map<int32_t, float> logit_bias;
  uint64_t seed = 0;
};

void validate(const SamplingOptions& options);  // throws Error naming the field

// Returns the rule for the token at `position` of a sequence. `history` is the prompt and then the output, which
// begins at `output_begin`. Filters apply in the order of Hugging Face: penalties and bias, temperature, top-k,
// top-p, min-p. The rule refers to `changes`, which must live as long.
ChoiceRule choice_rule(const SamplingOptions& options, std::span<const int32_t> history, int64_t output_begin,
                       int64_t position, int64_t vocabulary, std::vector<LogitChange>& changes);

// Throws Error if the row had no best token.
void check_chosen(const Choice& choice);

int32_t argmax(std::span<const float> logits);

}  // namespace fidelio
