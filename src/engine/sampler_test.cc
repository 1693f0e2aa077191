#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/rng.h"
#include "kernels/cpu/choice/choose.h"
#include "step/choice_race.h"

namespace fidelio {
namespace {

int32_t choose(std::span<const float> logits, std::span<const int32_t> history, int64_t output_begin, int64_t position,
               const SamplingOptions& options) {
  std::vector<LogitChange> changes;
  const ChoiceRule rule =
      choice_rule(options, history, output_begin, position, static_cast<int64_t>(logits.size()), changes);
  const Choice choice = cpu::Chooser().choose(logits, rule);
  check_chosen(choice);
  return choice.id;
}

// A row that holds a NaN has no order and is refused, greedy or sampled, wherever the NaN stands. A logit of
// -infinity only means that the token may not be chosen.
TEST(Sampler, RefusesRowsThatHaveNoBest) {
  const std::vector<int32_t> history = {1};
  for (double temperature : {0.0, 0.7})
    for (size_t at : {size_t{0}, size_t{5}, size_t{63}}) {
      const SamplingOptions options{.temperature = temperature, .logit_bias = {}};
      for (float bad : {std::nanf(""), INFINITY}) {
        std::vector<float> logits(64, 1.0f);
        logits[at] = bad;
        EXPECT_THROW(choose(logits, history, 0, 1, options), Error) << temperature << " " << at;
      }
      std::vector<float> logits(64, -INFINITY);
      EXPECT_THROW(choose(logits, history, 0, 1, options), Error);
      logits[at] = -3;
      EXPECT_EQ(choose(logits, history, 0, 1, options), static_cast<int32_t>(at));
    }
}

// This is the definition in double: the tokens that remain after the filters, best first.
struct Definition {
  std::vector<std::pair<float, int32_t>> order;
  std::vector<double> weight;
  double doubt = 1;  // How far the nearest filter was from keeping another set, as a share of the best token's weight.

  Definition(std::vector<float> x, std::span<const int32_t> history, int64_t output_begin, const SamplingOptions& o) {
    for (size_t id = 0; id < x.size(); ++id) {
      const auto token = static_cast<int32_t>(id);
      if (o.repetition_penalty != 1 && std::count(history.begin(), history.end(), token) > 0)
        x[id] = static_cast<float>(x[id] > 0 ? x[id] / o.repetition_penalty : x[id] * o.repetition_penalty);
      if (const auto times = std::count(history.begin() + output_begin, history.end(), token); times > 0)
        x[id] -= static_cast<float>(o.presence_penalty + o.frequency_penalty * static_cast<double>(times));
      if (o.logit_bias.contains(token)) x[id] += o.logit_bias.at(token);
      order.emplace_back(x[id], token);
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    if (o.top_k > 0 && static_cast<size_t>(o.top_k) < order.size()) order.resize(static_cast<size_t>(o.top_k));
    double total = 0;
    for (const auto& [logit, id] : order)
      total += weight.emplace_back(std::exp((static_cast<double>(logit) - order[0].first) / o.temperature));
    size_t kept = weight.size();
    if (o.top_p < 1) {
      double sum = 0;
      for (kept = 0; kept < weight.size() && sum < o.top_p * total; ++kept) {
        sum += weight[kept];
        doubt = std::min(doubt, std::abs(sum - o.top_p * total) / total);
      }
    }
    for (double w : weight) doubt = std::min(doubt, o.min_p > 0 ? std::abs(w / o.min_p - 1) : 1);
    while (kept > 1 && weight[kept - 1] < o.min_p) --kept;
    weight.resize(kept);
  }
  // Returns the token that arrives first (choice_race.h), and how far it is ahead of the next, as a share.
  std::pair<int32_t, double> choose(uint64_t random) const {
    double first = INFINITY, next = INFINITY;
    int32_t id = -1;
    for (size_t i = 0; i < weight.size(); ++i) {
      const auto words = choice::random_words(static_cast<uint32_t>(order[i].second), random);
      const double time = static_cast<double>(choice::exponential<choice::OneLane>(words)) / weight[i];
      next = std::min(next, std::max(first, time));
      if (time < first) first = time, id = order[i].second;
    }
    return {id, std::min(next / first - 1, doubt)};
  }
};

// FP32 weights have a relative error of 3 t 2^-24 + 2^-22 (choice_arithmetic.h), where t <= 40 if there is a weight
// at all: 7.4e-6. Shares of sums have the same error, and arrivals 2^-20 more. Cases nearer than twice that are
// skipped.
TEST(Sampler, ChoosesWhatTheDefinitionDoes) {
  constexpr double kDoubt = 1.7e-5;
  Rng rng(21);
  int compared = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits(20 + rng.below(300));
    const double spread = 1 + 4 * rng.uniform();
    for (float& x : logits) x = static_cast<float>(spread * rng.normal());
    std::vector<int32_t> history(5 + rng.below(30));
    for (int32_t& id : history) id = static_cast<int32_t>(rng.below(logits.size() + 3));
    SamplingOptions o{.temperature = 0.2 + rng.uniform() * 1.5, .logit_bias = {}, .seed = rng.next()};
    if (rng.below(2) == 0) o.top_k = static_cast<int64_t>(1 + rng.below(40));
    if (rng.below(2) == 0) o.top_p = 0.5 + 0.5 * rng.uniform();
    if (rng.below(3) == 0) o.min_p = 0.2 * rng.uniform();
    if (rng.below(3) == 0) o.repetition_penalty = 1.2;
    if (rng.below(3) == 0) o.presence_penalty = 0.5, o.frequency_penalty = 0.3;
    if (rng.below(3) == 0) o.logit_bias = {{3, 2.0f}, {7, -100.0f}};
    const auto output_begin = static_cast<int64_t>(rng.below(history.size()));
    const auto position = static_cast<int64_t>(history.size());
    const uint64_t random = Rng(o.seed, static_cast<uint64_t>(position)).next();
    const auto [expected, nearest] = Definition(logits, history, output_begin, o).choose(random);
    if (nearest < kDoubt) continue;
    ++compared;
    EXPECT_EQ(choose(logits, history, output_begin, position, o), expected) << round;
  }
  EXPECT_GT(compared, 2700);
}

TEST(Sampler, ValidatesOptions) {
  EXPECT_THROW(validate({.temperature = -1, .logit_bias = {}}), Error);
  EXPECT_THROW(validate({.temperature = NAN, .logit_bias = {}}), Error);
  EXPECT_THROW(validate({.top_k = -1, .logit_bias = {}}), Error);
  EXPECT_THROW(validate({.min_p = 1.5, .logit_bias = {}}), Error);
  EXPECT_THROW(validate({.repetition_penalty = 0, .logit_bias = {}}), Error);
  EXPECT_THROW(validate({.frequency_penalty = INFINITY, .logit_bias = {}}), Error);
}

// The temperatures are beyond what a float can scale by. Then the best token alone remains, or all are alike.
TEST(Sampler, ExtremeTemperatures) {
  const std::vector<float> logits = {1, 5, 2, -INFINITY};
  for (int64_t position = 0; position < 50; ++position) {
    EXPECT_EQ(choose(logits, {}, 0, position, {.temperature = 1e-300, .logit_bias = {}}), 1);
    EXPECT_NE(choose(logits, {}, 0, position, {.temperature = 1e300, .logit_bias = {}}), 3);
  }
}

}  // namespace
}  // namespace fidelio
