// Choosing the next token from logits. The random number of a choice is a pure function of (seed, position), so a
// sampled token depends on its request's seed and position alone: batching, preemption and speculation cannot change
// it.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

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

// `history` is prompt then output; the output begins at `output_begin`. `position` is the place of the chosen token in
// the sequence. Order of filters as in Hugging Face: penalties and bias, temperature, top-k, top-p, min-p. Not
// thread-safe: it keeps scratch between calls.
class Sampler {
 public:
  int32_t choose(std::span<const float> logits, std::span<const int32_t> history, int64_t output_begin,
                 int64_t position, const SamplingOptions& options);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  std::vector<float> adjusted_;
  std::vector<Candidate> candidates_;
};

int32_t argmax(std::span<const float> logits);

}  // namespace fidelio
