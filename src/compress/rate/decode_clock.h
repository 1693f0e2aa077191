// A DecodeClock measures how long a model takes for a token when it decodes, one sequence at a time.
#pragma once
#include <functional>
#include <limits>
#include <vector>

#include "runtime/runner.h"

namespace fidelio {

// A StepTimer returns the seconds of one step of this batch, including the choice of its token.
using StepTimer = std::function<double(Runner& runner, const Batch& batch, Activations mode)>;

// It times a step of one row after so many tokens of context. That is all that a token costs, including attention,
// norms, head and choice. The weights that are in force in the runner are timed.
class DecodeClock {
 public:
  // Fills the runner's cache with `context` tokens. Without a `timer`, this machine's clock is used.
  DecodeClock(Runner& runner, int64_t context, StepTimer timer);

  // Returns the seconds of a step. Here and below, steps are timed in blocks, and a block's time is the first decile of
  // its steps. Blocks that are much slower than the fastest one were disturbed by other programs and do not count.
  // Blocks go on until enough of them count, but only for some seconds.
  double seconds();
  // Returns how many seconds longer a step takes in one state of the runner than in the other, which is left in force,
  // and the seconds of a step of the other. Blocks of the two alternate. The other is the same state for all
  // differences of a clock.
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
  double fastest_ = std::numeric_limits<double>::infinity();  // fastest block of the other state so far
};

}  // namespace fidelio
