// This file defines the choice of a token from a row of logits: ChoiceRule says how to choose and Choice is the
// result. A backend chooses where its logits are. From the same logits and rule all backends choose the same token
// and report the same numbers, bit for bit.
//
// Tokens are ranked by logit, and equal logits by id, the lower one first. Every filter keeps a prefix of that order.
// Tokens have integer weights (choice_arithmetic.h), so a distribution is a row of integers over their sum, exactly.
// The kept tokens run a race (choice_race.h), which each wins with the probability of its weight: this is Gumbel
// sampling.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace fidelio {

// A LogitChange says how one token's logit x is changed before anything else. If `repeated`, x becomes x / r, or x r
// where x is negative; r is the rule's repetition. Then `less` is subtracted and `more` is added.
struct LogitChange {
  int32_t id;
  bool repeated;
  float less, more;
};

struct ChoiceRule {
  std::span<const LogitChange> changes;  // ids differ, each in the vocabulary
  double repetition = 1;
  bool greedy = true;  // the best token is chosen, and the members below are ignored
  float scale = 0;     // log2(e) / temperature, a normal number
  int64_t top_k = 0;   // keeps the best k tokens; 0 keeps all
  double top_p = 1;    // keeps the shortest prefix of those with at least this share of their weight; 1 keeps all
  float farthest = __builtin_inff();  // keeps those at most this many halvings below the best, which is -log2(min_p)
  uint64_t random = 0;                // a uniform random number
  bool wants_probability = false;
};

struct Choice {
  int32_t id = -1;  // -1 if a logit is NaN or +infinity, or all are -infinity
  // These describe the model's own distribution and are set if wants_probability is: the unchanged logit of the token,
  // the best logit of the row, and the sum of all weights at temperature 1. log_probability() combines them.
  float logit = 0, top = 0;
  uint64_t total = 0;
};
float log_probability(const Choice& choice);  // Returns the natural logarithm of the token's probability.

// A TokenDistribution is what is left of a row after changes and filters. Token ids[i] has probability weights[i] /
// total. The ids ascend.
struct TokenDistribution {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  std::vector<uint64_t> weights;  // at least 1
  uint64_t total = 0;             // 0 if the row has no best token (Choice::id is -1)
};

}  // namespace fidelio
