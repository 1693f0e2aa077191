// Choosing a token from a row of logits: what is asked for and what comes back. A backend chooses where its logits
// are; from the same logits and rule all choose the same token and report the same numbers, bit for bit.
//
// Tokens are ranked by logit, of equal ones the lower id first. Every filter keeps a prefix of that order, by weights
// that are integers (choice_arithmetic.h), so that a distribution is a row of integers over their sum, exactly. The kept
// tokens run a race (choice_race.h), which each wins with the probability of its weight: Gumbel sampling.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace fidelio {

// What happens to one token's logit before all else: r = the rule's repetition, if `repeated` x / r or, where x is
// negative, x r; then x - less; then x + more.
struct LogitChange {
  int32_t id;
  bool repeated;
  float less, more;
};

struct ChoiceRule {
  std::span<const LogitChange> changes;  // ids differ, each in the vocabulary
  double repetition = 1;
  bool greedy = true;                 // the best alone; of what follows nothing is looked at
  float scale = 0;                    // log2(e) / temperature: a normal number
  int64_t top_k = 0;                  // the best k; 0: all
  double top_p = 1;                   // of those, the shortest prefix with at least so much of their weight; 1: all
  float farthest = __builtin_inff();  // of those, tokens at most so many halvings below the best: -log2(min_p)
  uint64_t random = 0;                // uniform
  bool wants_probability = false;
};

struct Choice {
  int32_t id = -1;  // -1: a logit is NaN or +infinity, or all are -infinity
  // With wants_probability, of the model's own distribution: the logit as it came, the best of the row, and the sum of
  // all weights at temperature 1. log_probability() puts them together.
  float logit = 0, top = 0;
  uint64_t total = 0;
};
float log_probability(const Choice& choice);  // natural log

// What is left of a row after changes and filters: token i has probability weights[i] / total. In the order of ids.
struct TokenDistribution {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  std::vector<uint64_t> weights;  // at least 1
  uint64_t total = 0;             // 0: the row has no best (Choice::id)
};

}  // namespace fidelio
