// This file chooses tokens on the host; step/choice.h defines the choice and choice_arithmetic.h its bits. The
// steps are:
//
//   range    finds the best logit, and checks that all can be ordered; the greedy choice ends here
//   weigh    sums all weights and finds the few thousand tokens near the best, if top-k or top-p ask for a prefix
//   fill     puts tokens into bins by distance; a prefix of the order ends inside one bin, and only that one is read
//   race     finds the first of the kept tokens to arrive (choice_race.h)
//
// The near tokens nearly always settle a prefix. If they do not (a flat row, a large top-k), all tokens are binned.
// No row is ever sorted.
#pragma once
#include <memory>
#include <span>

#include "core/thread_pool.h"
#include "kernels/cpu/linear/linear.h"
#include "step/choice.h"

namespace fidelio::cpu {

// A Chooser keeps scratch between calls, so each thread needs one.
class Chooser {
 public:
  explicit Chooser(Isa isa = supported_isas().back());
  ~Chooser();
  Chooser(Chooser&&) noexcept;
  // Returns the token chosen from `logits` (v) by `rule`; its id is -1 if a logit is NaN or +infinity, or if all are
  // -infinity.
  Choice choose(std::span<const float> logits, const ChoiceRule& rule);
  // Returns the tokens that the rule leaves, with their weights.
  TokenDistribution distribution(std::span<const float> logits, const ChoiceRule& rule);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

// Chooses from row i of logits (rules, v) by rule i. The rows go to the pool's threads, each of which needs a
// chooser.
void choose_rows(ThreadPool& pool, std::span<Chooser> choosers, std::span<const float> logits,
                 std::span<const ChoiceRule> rules, std::span<Choice> choices);

}  // namespace fidelio::cpu
