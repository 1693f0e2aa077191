#include "engine/step_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "step/choice_arithmetic.h"

namespace fidelio {

ChoiceRule& StepSampler::add(const Wanted& wanted) {
  if (changes_.size() <= rules_.size()) changes_.emplace_back();
  wanted_.push_back(wanted);
  return rules_.emplace_back();
}

void StepSampler::want(const Sequence& s, const RowWish& wish) {
  ChoiceRule& rule = add({wish, &s});
  rule =
      choice_rule(s.request.sampling, s.history, s.output_begin, s.size(), s.vocabulary, changes_[rules_.size() - 1]);
  rule.wants_probability = wish.logprob || wish.sureness;
  if (wish.random != nullptr) rule.random = *wish.random;
}

void StepSampler::want_score(int32_t id, int64_t alternatives) {
  RowWish wish;
  wish.logprob = true;
  wish.alternatives = alternatives;
  add({wish, nullptr, id}).wants_probability = true;
}

Chosen StepSampler::chosen_from(const Choice& choice, const Wanted& wanted) {
  Chosen chosen{choice.id};
  if (choice.id < 0 || !(wanted.wish.logprob || wanted.wish.sureness)) return chosen;
  chosen.logprob = log_probability(choice);
  if (wanted.wish.sureness) chosen.sureness = std::exp(chosen.logprob);
  return chosen;
}

std::span<const Chosen> StepSampler::run(Runner& runner, const Batch& batch, Reading reading) {
  if (std::any_of(wanted_.begin(), wanted_.end(), [](const Wanted& w) { return w.on_host(); }))
    return run_on_host(runner, batch, reading, nullptr);
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
  return run_on_host(runner, batch, reading, &distributions);
}

std::span<const Chosen> StepSampler::run_on_host(Runner& runner, const Batch& batch, Reading reading,
                                                 std::vector<TokenDistribution>* distributions) {
  check(batch.logit_rows.size() == rules_.size(), "{} tokens are wanted of {} rows of logits", rules_.size(),
        batch.logit_rows.size());
  logits_ = runner.step(batch, reading);
  const auto v = static_cast<size_t>(runner.config().v);
  choices_.resize(rules_.size());
  chosen_.resize(rules_.size());
  if (distributions != nullptr) distributions->resize(rules_.size());
  best_.clear();
  size_t most = 0;
  for (const Wanted& w : wanted_) most += static_cast<size_t>(w.wish.alternatives);
  best_.reserve(most);  // spans of it are returned
  for (size_t i = 0; i < rules_.size(); ++i) {
    const auto row = logits_.subspan(i * v, v);
    const Wanted& wanted = wanted_[i];
    const bool free = wanted.wish.state == Constraint::kFree;
    Choice& choice = choices_[i];
    const auto offered = free ? row : masked(row, wanted);
    if (free || rules_[i].wants_probability) choice = chooser_.choose(row, rules_[i]);
    if (!free && (!rules_[i].wants_probability || choice.id >= 0)) {
      choice.id = chooser_.choose(offered, rules_[i]).id;
      if (choice.id >= 0) choice.logit = row[static_cast<size_t>(choice.id)];
    }
    if (wanted.scored >= 0 && choice.id >= 0) {
      choice.id = wanted.scored;
      choice.logit = row[static_cast<size_t>(wanted.scored)];
    }
    chosen_[i] = chosen_from(choice, wanted);
    if (choice.id >= 0 && wanted.wish.alternatives > 0) {
      const size_t first = best_.size();
      rank(row, choice, wanted.wish.alternatives);
      chosen_[i].best = std::span<const TokenScore>(best_).subspan(first);
    }
    if (distributions != nullptr) (*distributions)[i] = chooser_.distribution(offered, rules_[i]);
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

// Returns the row with the tokens masked that its constraint forbids. Stop ids are the request's; they are allowed
// where the answer may end.
std::span<const float> StepSampler::masked(std::span<const float> row, const Wanted& wanted) {
  const Sequence& s = *wanted.sequence;
  Constraint& constraint = *s.request.constraint;
  const Constraint::State state = wanted.wish.state;
  masked_.assign(row.size(), -std::numeric_limits<float>::infinity());
  // It stands behind a draft that cannot be accepted, so nobody will read it.
  if (state == Constraint::kForbidden) return row;
  const std::span<const uint64_t> words = constraint.allowed(state);
  for (size_t w = 0; w < words.size(); ++w)
    for (uint64_t left = words[w]; left != 0; left &= left - 1) {
      const size_t id = w * 64 + static_cast<size_t>(__builtin_ctzll(left));
      if (id < row.size()) masked_[id] = row[id];
    }
  if (constraint.may_end(state))
    for (int32_t id : s.request.stop_ids)
      if (id >= 0 && static_cast<size_t>(id) < row.size())
        masked_[static_cast<size_t>(id)] = row[static_cast<size_t>(id)];
  return masked_;
}

void StepSampler::rank(std::span<const float> row, const Choice& choice, int64_t count) {
  const auto most = std::min(static_cast<size_t>(count), row.size());
  ranks_.clear();  // a heap with the worst in front
  const std::greater<uint64_t> worse;
  for (size_t id = 0; id < row.size(); ++id) {
    const uint64_t rank = choice::rank_of(row[id], static_cast<int32_t>(id));
    if (ranks_.size() == most) {
      if (rank <= ranks_.front()) continue;
      std::pop_heap(ranks_.begin(), ranks_.end(), worse);
      ranks_.pop_back();
    }
    ranks_.push_back(rank);
    std::push_heap(ranks_.begin(), ranks_.end(), worse);
  }
  std::sort_heap(ranks_.begin(), ranks_.end(), worse);
  for (uint64_t rank : ranks_) {
    Choice other = choice;
    other.id = choice::id_of(rank);
    other.logit = row[static_cast<size_t>(other.id)];
    best_.push_back({other.id, log_probability(other)});
  }
}

float StepSampler::logprob_of(size_t row, int32_t id) const {
  Choice choice = choices_[row];
  choice.logit = logits_[row * (logits_.size() / rules_.size()) + static_cast<size_t>(id)];
  return log_probability(choice);
}

}  // namespace fidelio
