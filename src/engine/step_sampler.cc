#include "engine/step_sampler.h"

#include <cmath>

#include "core/error.h"

namespace fidelio {

void StepSampler::want(const Sequence& s, bool logprob, bool sureness, const uint64_t* random) {
  const size_t row = rules_.size();
  if (changes_.size() <= row) changes_.emplace_back();
  ChoiceRule rule = choice_rule(s.request.sampling, s.history, s.output_begin, s.size(), s.vocabulary, changes_[row]);
  rule.wants_probability = logprob || sureness;
  if (random != nullptr) rule.random = *random;
  rules_.push_back(rule);
  wanted_.resize(row);
  wanted_.push_back({logprob, sureness});
}

Chosen StepSampler::chosen_from(const Choice& choice, Wanted wanted) {
  Chosen chosen{choice.id};
  if (choice.id < 0 || !(wanted.logprob || wanted.sureness)) return chosen;
  chosen.logprob = log_probability(choice);
  if (wanted.sureness) chosen.sureness = std::exp(chosen.logprob);
  return chosen;
}

std::span<const Chosen> StepSampler::run(Runner& runner, const Batch& batch, Reading reading) {
  check(batch.logit_rows.size() == rules_.size(), "{} tokens are wanted of {} rows of logits", rules_.size(),
        batch.logit_rows.size());
  choices_.resize(rules_.size());
  chosen_.resize(rules_.size());
  runner.step_and_choose(batch, reading, rules_, choices_);
  for (size_t i = 0; i < rules_.size(); ++i) chosen_[i] = chosen_from(choices_[i], wanted_[i]);
  return chosen_;
}

std::span<const Chosen> StepSampler::run(Runner& runner, const Batch& batch, Reading reading,
                                         std::vector<TokenDistribution>& distributions) {
  check(batch.logit_rows.size() == rules_.size(), "{} tokens are wanted of {} rows of logits", rules_.size(),
        batch.logit_rows.size());
  logits_ = runner.step(batch, reading);
  const auto v = static_cast<size_t>(runner.config().v);
  choices_.resize(rules_.size());
  chosen_.resize(rules_.size());
  distributions.resize(rules_.size());
  for (size_t i = 0; i < rules_.size(); ++i) {
    const auto row = logits_.subspan(i * v, v);
    choices_[i] = chooser_.choose(row, rules_[i]);
    chosen_[i] = chosen_from(choices_[i], wanted_[i]);
    distributions[i] = chooser_.distribution(row, rules_[i]);
  }
  return chosen_;
}

int32_t StepSampler::enqueue(Runner& runner, const Batch& batch, Reading reading, std::span<const int32_t> from,
                             bool first) {
  check(batch.logit_rows.size() == rules_.size(), "{} tokens are wanted of {} rows of logits", rules_.size(),
        batch.logit_rows.size());
  if (first) choices_.clear(), enqueued_.clear();
  const auto place = static_cast<int32_t>(choices_.size());
  runner.enqueue(batch, reading, from, rules_, choices_);
  enqueued_.insert(enqueued_.end(), wanted_.begin(), wanted_.end());
  return place;
}

std::span<const Chosen> StepSampler::collect(Runner& runner) {
  runner.collect(choices_);
  chosen_.resize(choices_.size());
  for (size_t i = 0; i < choices_.size(); ++i) chosen_[i] = chosen_from(choices_[i], enqueued_[i]);
  return chosen_;
}

float StepSampler::logprob_of(size_t row, int32_t id) const {
  Choice choice = choices_[row];
  choice.logit = logits_[row * (logits_.size() / rules_.size()) + static_cast<size_t>(id)];
  return log_probability(choice);
}

}  // namespace fidelio
