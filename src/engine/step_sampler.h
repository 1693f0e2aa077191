// StepSampler: a step's rows of logits, and the token chosen from each by its sequence's own rule. The one place where
// the engine meets the sampler. Logits stay where they are computed, unless distributions are asked for.
#pragma once
#include <deque>
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "engine/sequence.h"
#include "kernels/cpu/choice/choose.h"
#include "runtime/runner.h"

namespace fidelio {

struct Chosen {
  int32_t id = -1;     // -1: the row has no best token, a logit is not finite
  float logprob = 0;   // natural, in the model's own distribution, if wanted
  float sureness = 0;  // its probability there, if wanted
};

class StepSampler {
 public:
  void clear() { rules_.clear(); }
  // The token after the sequence's history as it stands now, for the batch's next logit row. It is drawn by the random
  // number of (seed, position), or by `random` if that is given.
  void want(const Sequence& sequence, bool logprob, bool sureness, const uint64_t* random = nullptr);
  // Runs the step; chosen[i] of the i-th row wanted.
  std::span<const Chosen> run(Runner& runner, const Batch& batch, Reading reading);
  // The same, and what each token was drawn from. The logits come to the host.
  std::span<const Chosen> run(Runner& runner, const Batch& batch, Reading reading,
                              std::vector<TokenDistribution>& distributions);
  // The same without waiting, of steps that follow from each other (Runner::enqueue): row i's token is that of place
  // from[i]. Returns the place of its first row; begins anew where `first`.
  int32_t enqueue(Runner& runner, const Batch& batch, Reading reading, std::span<const int32_t> from, bool first);
  std::span<const Chosen> collect(Runner& runner);  // of every place
  // After a run that gave distributions: of another token of row i, in the model's own distribution.
  float logprob_of(size_t row, int32_t id) const;

 private:
  struct Wanted {
    bool logprob, sureness;
  };
  static Chosen chosen_from(const Choice& choice, Wanted wanted);

  std::vector<ChoiceRule> rules_;
  std::vector<Wanted> wanted_, enqueued_;
  std::deque<std::vector<LogitChange>> changes_;  // that rules_ refer to: they stay where they are
  std::vector<Choice> choices_;
  std::vector<Chosen> chosen_;
  std::span<const float> logits_;
  cpu::Chooser chooser_;
};

}  // namespace fidelio
