// Choosing tokens on the host (step/choice.h says what; choice_arithmetic.h with which bits).
//
//   range    the best logit, and whether all can be ordered; the greedy choice ends here
//   weigh    the sum of all weights, and the few thousand tokens near the best: where top-k or top-p ask for a prefix
//   Order    tokens dealt into bins by distance; a prefix of the order ends inside one bin, which alone is looked at
//   race     the first of the kept tokens to arrive (choice_race.h)
//
// Nearly always the near tokens settle a prefix; where they do not (a flat row, a large top-k), all tokens are binned.
// No row is ever sorted.
#pragma once
#include <memory>
#include <span>

#include "core/thread_pool.h"
#include "kernels/cpu/linear/linear.h"
#include "step/choice.h"

namespace fidelio::cpu {

// Keeps scratch between calls: one for each thread.
class Chooser {
 public:
  explicit Chooser(Isa isa = supported_isas().back());
  ~Chooser();
  Chooser(Chooser&&) noexcept;
  Choice choose(std::span<const float> logits, const ChoiceRule& rule);
  TokenDistribution distribution(std::span<const float> logits, const ChoiceRule& rule);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

// Row i of logits (rules, v) by rule i; rows go to the pool's threads, of which each needs a chooser.
void choose_rows(ThreadPool& pool, std::span<Chooser> choosers, std::span<const float> logits,
                 std::span<const ChoiceRule> rules, std::span<Choice> choices);

}  // namespace fidelio::cpu
