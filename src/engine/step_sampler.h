// StepSampler: a step's rows of logits, and what is read from each: a token chosen by its sequence's own rule, or the
// score of a token that is known. The one place where the engine meets the sampler. Logits stay where they are computed
// unless a row's constraint, alternatives or distribution are asked for; what is told of a row is the same either way.
#pragma once
#include <deque>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "kernels/cpu/choice/choose.h"
#include "runtime/runner.h"

namespace fidelio {

struct Chosen {
  int32_t id = -1;                     // -1: the row has no best token, a logit is not finite
  float logprob = 0;                   // natural, in the model's own distribution, if wanted
  float sureness = 0;                  // its probability there, if wanted
  std::span<const TokenScore> best{};  // the row's best tokens in that distribution, as many as wanted
};

// What is wanted of a row besides a token.
struct RowWish {
  bool logprob = false, sureness = false;
  int64_t alternatives = 0;
  Constraint::State state = Constraint::kFree;  // the token is one that the sequence's constraint allows there
  const uint64_t* random = nullptr;             // draws the token instead of the number of (seed, position)
};
// What a sequence's owner asked to hear of each of its tokens.
inline RowWish wish_of(const Sequence& s, Constraint::State state) {
  return {.logprob = s.request.logprobs, .alternatives = s.request.alternatives, .state = state};
}

class StepSampler {
 public:
  void clear() { rules_.clear(), wanted_.clear(); }
  // The token after the sequence's history as it stands now, for the batch's next logit row.
  void want(const Sequence& sequence, const RowWish& wish);
  // The score of token `id` in the batch's next logit row, and of the best ones.
  void want_score(int32_t id, int64_t alternatives);
  // Runs the step; chosen[i] of the i-th row wanted. Valid until the next run.
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
  std::deque<std::vector<LogitChange>> changes_;  // that rules_ refer to: they stay where they are
  std::vector<Choice> choices_;
  std::vector<Chosen> chosen_;
  std::vector<TokenScore> best_;
  std::vector<uint64_t> ranks_;
  std::vector<float> masked_;
  std::span<const float> logits_;
  cpu::Chooser chooser_;
};

}  // namespace fidelio
