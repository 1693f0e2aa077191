// What a request asks of its sampling, and the rule for one token that follows from it (step/choice.h). The random
// number of a choice is a pure function of (seed, position), so a sampled token depends on its request's seed, its
// tokens and its position alone: batching, preemption and speculation cannot change it.
//
// Speculation stands on two functions of cpu::Chooser. choose() with the rule of (seed, position) is what plain decoding
// would choose there: drafts that agree with it are accepted, and the text is that of plain decoding (drafter and
// verifier share the random number: Gumbel-coupled sampling, choice_race.h). distribution() is what is left after
// filters, as integer weights over their sum, for rejection sampling.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "step/choice.h"

namespace fidelio {

struct SamplingOptions {
  double temperature = 0;         // 0: greedy (the lowest id among equal logits)
  int64_t top_k = 0;              // keep the k most likely; 0 = all
  double top_p = 1;               // keep the smallest set of most likely tokens whose probabilities reach p
  double min_p = 0;               // keep tokens at least min_p times as likely as the best
  double repetition_penalty = 1;  // of prompt and output tokens: logit / r if positive, * r if negative
  double presence_penalty = 0;    // subtracted once from tokens already in the output
  double frequency_penalty = 0;   // subtracted once per occurrence in the output
  std::map<int32_t, float> logit_bias;
  uint64_t seed = 0;
};

void validate(const SamplingOptions& options);  // throws Error naming the field

// The rule for the token at `position` of a sequence. `history` is prompt then output; the output begins at
// `output_begin`. Order of filters as in Hugging Face: penalties and bias, temperature, top-k, top-p, min-p. `changes`
// is what the rule refers to: it must live as long.
ChoiceRule choice_rule(const SamplingOptions& options, std::span<const int32_t> history, int64_t output_begin,
                       int64_t position, int64_t vocabulary, std::vector<LogitChange>& changes);

// Throws Error if the row had no best token.
void check_chosen(const Choice& choice);

int32_t argmax(std::span<const float> logits);

}  // namespace fidelio
