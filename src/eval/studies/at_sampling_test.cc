#include "eval/studies/at_sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"
#include "eval/studies/compare.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

using Probabilities = std::vector<long double>;

SamplingOptions sampling_of(double temperature, int64_t top_k = 0, double top_p = 1, double min_p = 0) {
  SamplingOptions o;
  o.temperature = temperature;
  o.top_k = top_k;
  o.top_p = top_p;
  o.min_p = min_p;
  return o;
}

GenerationDefaults defaults_of(std::optional<bool> do_sample, std::optional<double> temperature = {}) {
  GenerationDefaults d;
  d.do_sample = do_sample;
  d.temperature = temperature;
  return d;
}

std::vector<float> sampled_logits(size_t v, double spread, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> logits(v);
  for (float& x : logits) x = static_cast<float>(spread * rng.normal());
  return logits;
}

// This is the definition in long double: temperature, then top-k, then the shortest prefix in the order of
// probability that reaches top-p, then min-p, each applied to what is left.
Probabilities slow_sampled(const std::vector<float>& logits, const SamplingOptions& o) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto weight = [&](size_t id) {
    return std::exp((static_cast<long double>(logits[id]) - logits[order[0]]) / o.temperature);
  };
  if (o.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(o.top_k)));
  long double all = 0, reached = 0;
  for (size_t id : order) all += weight(id);
  size_t kept = 0;
  while (kept < order.size() && reached < o.top_p * all) reached += weight(order[kept++]);
  order.resize(kept);
  while (weight(order.back()) < o.min_p) order.pop_back();
  long double sum = 0;
  for (size_t id : order) sum += weight(id);
  Probabilities p(logits.size());
  for (size_t id : order) p[id] = weight(id) / sum;
  return p;
}

long double slow_overlap(const Probabilities& p, const Probabilities& q) {
  long double ear = 0;
  for (size_t i = 0; i < p.size(); ++i) ear += std::min(p[i], q[i]);
  return ear;
}

TEST(AtSampling, TheOverlapIsThatOfTheFilteredDistributions) {
  for (const SamplingOptions& o :
       {sampling_of(0.6, 0, 0.9), sampling_of(0.7, 20), sampling_of(1, 0, 1, 0.05), sampling_of(0.6, 20, 0.95, 0.1)}) {
    SampledRows rows(o);
    EXPECT_TRUE(rows.filters());
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<float> p = sampled_logits(300, 3, seed);
      std::vector<float> q = p;
      Rng rng(seed, 1);
      for (float& x : q) x += static_cast<float>(0.1 * rng.normal());
      EXPECT_NEAR(rows.ear(p, q), static_cast<double>(slow_overlap(slow_sampled(p, o), slow_sampled(q, o))), 1e-6);
      EXPECT_NEAR(rows.ear(p, p), 1, 1e-15);
      EXPECT_EQ(rows.ear(p, q), rows.ear(q, p));
    }
  }
}

TEST(AtSampling, TemperatureAloneIsTheFullVocabulary) {
  const std::vector<float> p = sampled_logits(301, 3, 1), q = sampled_logits(301, 3, 2);
  EXPECT_FALSE(SampledRows(sampling_of(0.5)).filters());
  RowComparer comparer;
  for (double temperature : {0.5, 1.0, 3.0}) {
    comparer.compare(p, q);
    const RowComparer::Distance d = comparer.at_temperature(temperature);
    const Probabilities a = slow_sampled(p, sampling_of(temperature)), b = slow_sampled(q, sampling_of(temperature));
    long double kl = 0;
    for (size_t i = 0; i < a.size(); ++i) kl += a[i] * std::log(a[i] / b[i]);
    EXPECT_NEAR(d.kl / static_cast<double>(kl), 1, 1e-5) << temperature;
    EXPECT_NEAR(d.ear, static_cast<double>(slow_overlap(a, b)), 1e-6) << temperature;
  }
}

TEST(AtSampling, IsWhatGenerationConfigRecommends) {
  EXPECT_FALSE(recommended_sampling(defaults_of({})));
  EXPECT_FALSE(recommended_sampling(defaults_of(false, 0.6)));
  EXPECT_FALSE(recommended_sampling(defaults_of(true, 0.0)));
  const auto plain = recommended_sampling(defaults_of(true));
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->temperature, 1);
  GenerationDefaults defaults = defaults_of({}, 0.6);
  defaults.top_k = 20;
  defaults.top_p = 0.95;
  const auto all = recommended_sampling(defaults);
  ASSERT_TRUE(all);
  EXPECT_EQ(sampling_json(*all),
            nlohmann::json({{"temperature", 0.6}, {"top_k", 20}, {"top_p", 0.95}, {"min_p", 0.0}}));
  EXPECT_EQ(sampling_json(sampling_from_json(sampling_json(*all))), sampling_json(*all));
  EXPECT_EQ(sampling_text(*all), "temperature 0.6, top-k 20, top-p 0.95");
  EXPECT_EQ(sampling_text(*plain), "temperature 1");
  EXPECT_THROW(recommended_sampling(defaults_of({}, -1.0)), Error);
}

TEST(AtSampling, AComparisonMeasuresItBesideTheOther) {
  const auto measured = [](std::optional<SamplingOptions> sampling, int threads) {
    RunnerOptions options;
    options.max_rows = 64;
    options.max_logit_rows = 16;
    FakeRunner a({.noise = 0}, options), b({.noise = 0.3}, options);
    EvalText text{"text", "digest", {}};
    Rng rng(1);
    for (int i = 0; i < 400; ++i) text.ids.push_back(static_cast<int32_t>(rng.below(23)));
    ThreadPool pool(threads);
    return compare_models(a, b, std::vector{text}, {.windows = {.context = 20}, .sampling = sampling}, pool);
  };
  const FidelityReport without = measured({}, 2), with = measured(sampling_of(0.6, 0, 0.9), 2);
  EXPECT_TRUE(to_json(without)["sampled"].is_null());
  EXPECT_EQ(with.ear().value, without.ear().value);
  const nlohmann::json sampled = to_json(with)["sampled"];
  EXPECT_EQ(sampled["top_p"], 0.9);
  EXPECT_GT(sampled["ear"]["value"], 0.5);
  EXPECT_NE(sampled["ear"]["value"], with.ear().value);
  EXPECT_GT(sampled["kl"]["value"], with.kl().value);  // a lower temperature spreads logits, and so their differences
  EXPECT_EQ(to_json(with).dump(), to_json(measured(with.options.sampling, 1)).dump());
  // At temperature 1 without filters, the figures equal the unsampled ones.
  const FidelityReport same = measured(sampling_of(1), 1);
  EXPECT_EQ(same.ear_sampled().value, same.ear().value);
  EXPECT_EQ(same.kl_sampled().value, same.kl().value);
}

}  // namespace
}  // namespace fidelio
