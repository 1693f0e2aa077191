// How long a model takes for a token when it decodes, one sequence at a time.
#pragma once
#include <functional>
#include <limits>
#include <vector>

#include "runtime/runner.h"

namespace fidelio {

// Seconds of one step of this batch, the choice of its token included.
using StepTimer = std::function<double(Runner& runner, const Batch& batch, Activations mode)>;

// A step of one row after so many tokens of context: all that a token costs, attention, norms, head and choice too.
// What is timed are the weights in force in the runner.
class DecodeClock {
 public:
  // Fills the runner's cache with `context` tokens. `timer` empty: this machine's clock.
  DecodeClock(Runner& runner, int64_t context, StepTimer timer);

  // Of the weights in force. Here and below steps are timed in blocks, a block's time is the first decile of its steps,
  // and of blocks those count that are not much slower than the fastest: others were disturbed by other programs.
  // Blocks go on until enough of them count, for some seconds at most.
  double seconds();
  // Seconds that a step takes longer in one state of the runner than in the other, which is left in force. Blocks of the
  // two take turns. The other is the same state for all differences of a clock. `other`: what a step of that takes.
  struct Difference {
    double seconds, other;
  };
  Difference difference(const std::function<void()>& put_one, const std::function<void()>& put_other);
  int64_t context() const { return context_; }

 private:
  double step();
  double block();
  Runner& runner_;
  int64_t context_;
  StepTimer timer_;
  std::vector<int32_t> pages_;
  double fastest_ = std::numeric_limits<double>::infinity();  // block of the other state, of all differences
};

}  // namespace fidelio
