// A StepSampler reads a step's rows of logits. From each row it takes a token chosen by its sequence's own rule, or
// the score of a known token. It is the one place where the engine meets the sampler. Logits stay on the device that
// computed them, unless a row's constraint, alternatives or distribution are needed; the results are the same either
// way.
#pragma once
#include <deque>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "kernels/cpu/choice/choose.h"
#include "runtime/runner.h"

namespace fidelio {

struct Chosen {
  int32_t id = -1;                     // -1 if the row has no best token because a logit is not finite
  float logprob = 0;                   // natural logarithm in the model's own distribution, if wanted
  float sureness = 0;                  // probability in that distribution, if wanted
  std::span<const TokenScore> best{};  // the best tokens in that distribution, as many as wanted
};

// A RowWish says what is wanted of a row in addition to a token.
struct RowWish {
  bool logprob = false, sureness = false;
  int64_t alternatives = 0;
  // The token must be one that the sequence's constraint allows in this state.
  Constraint::State state = Constraint::kFree;
  const uint64_t* random = nullptr;  // if set, it draws the token in place of the number of (seed, position)
};
// Returns what a sequence's owner asked to be told of each token.
inline RowWish wish_of(const Sequence& s, Constraint::State state) {
  return {.logprob = s.request.logprobs, .alternatives = s.request.alternatives, .state = state};
}

class StepSampler {
 public:
  void clear() { rules_.clear(), wanted_.clear(); }
  // Asks for the token after the sequence's present history, from the batch's next logit row.
  void want(const Sequence& sequence, const RowWish& wish);
  // Asks for the score of token `id` in the batch's next logit row, and of the best tokens there.
  void want_score(int32_t id, int64_t alternatives);
  // Runs the step. Entry i of the result is for the i-th row that was asked for. It is valid until the next run.
  std::span<const Chosen> run(Runner& runner, const Batch& batch, Reading reading);
  // Does the same and also returns what each token was drawn from. For this the logits are copied to the host.
  std::span<const Chosen> run(Runner& runner, const Batch& batch, Reading reading,
                              std::vector<TokenDistribution>& distributions);
  // Does the same without waiting, for steps that follow from each other (Runner::enqueue): row i's token is that of
  // place from[i]. Returns the place of its first row. If `first` is true, a new series begins.
  int32_t enqueue(Runner& runner, const Batch& batch, Reading reading, std::span<const int32_t> from, bool first);
  std::span<const Chosen> collect(Runner& runner);  // waits, and returns the results of every place
  // After a run with distributions, returns the log-probability of another token of row i, in the model's own
  // distribution.
  float logprob_of(size_t row, int32_t id) const;

 private:
  struct Wanted {
    RowWish wish;
    const Sequence* sequence = nullptr;
    int32_t scored = -1;  // the token whose score is wanted
    bool on_host() const { return scored >= 0 || wish.alternatives > 0 || wish.state != Constraint::kFree; }
  };
  std::span<const Chosen> run_on_host(Runner& runner, const Batch& batch, Reading reading,
                                      std::vector<TokenDistribution>* distributions);
  ChoiceRule& add(const Wanted& wanted);
  static Chosen chosen_from(const Choice& choice, const Wanted& wanted);
  std::span<const float> masked(std::span<const float> row, const Wanted& wanted);
  void rank(std::span<const float> row, const Choice& choice, int64_t count);

  std::vector<ChoiceRule> rules_;
  std::vector<Wanted> wanted_, enqueued_;
  std::deque<std::vector<LogitChange>> changes_;  // rules_ refer to these, so they must not move
  std::vector<Choice> choices_;
  std::vector<Chosen> chosen_;
  std::vector<TokenScore> best_;
  std::vector<uint64_t> ranks_;
  std::vector<float> masked_;
  std::span<const float> logits_;
  cpu::Chooser chooser_;
};

}  // namespace fidelio
