#include "eval/statistics/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/rng.h"

namespace fidelio {
namespace {

using nlohmann::json;

const json& fixtures() {
  static const json all = json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/eval/testdata/statistics.json"));
  return all;
}

// Both sides are sums of at most some hundred doubles, so 1e-10 leaves four orders of magnitude for their rounding.
constexpr double kSameStatistic = 1e-10;

TEST(Statistics, WilcoxonEqualsScipy) {
  for (const json& c : fixtures()["wilcoxon"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const Wilcoxon w = wilcoxon(c["differences"].get<std::vector<double>>());
    EXPECT_DOUBLE_EQ(w.rank_sum_positive, c["positive"]);
    EXPECT_DOUBLE_EQ(w.rank_sum_negative, c["negative"]);
    EXPECT_EQ(w.pairs, c["pairs"]);
    EXPECT_EQ(w.exact, c["exact"]);
    EXPECT_NEAR(w.p, c["p"].get<double>(), kSameStatistic);
  }
}

TEST(Statistics, WilcoxonWithoutAnyDifferenceIsNoEvidence) {
  const Wilcoxon w = wilcoxon(std::vector<double>(7, 0.0));
  EXPECT_EQ(w.pairs, 0);
  EXPECT_EQ(w.p, 1);
}

TEST(Statistics, SummariesEqualNumpy) {
  const json &d = fixtures()["cohens_d"], &cv = fixtures()["within_query_cv"], &p = fixtures()["percentiles"];
  EXPECT_NEAR(cohens_d(d["differences"].get<std::vector<double>>()), d["d"].get<double>(), kSameStatistic);
  EXPECT_NEAR(mean(within_query_cv(cv["runs"].get<std::vector<std::vector<double>>>())), cv["cv"].get<double>(),
              kSameStatistic);
  const auto values = p["values"].get<std::vector<double>>();
  for (size_t i = 0; i < p["percents"].size(); ++i)
    EXPECT_NEAR(percentile(values, p["percents"][i]), p["expected"][i].get<double>(), kSameStatistic);
  EXPECT_EQ(cohens_d(std::vector<double>{0, 0, 0}), 0);
  EXPECT_TRUE(std::isnan(standard_deviation(std::vector<double>{1.0})));
}

TEST(Statistics, NormalQuantileEqualsScipy) {
  for (const json& c : fixtures()["normal"]) {
    const double p = c["p"], z = c["z"];
    // A relative rounding of p (or of 1 - p) by 1e-16 moves z by 1e-16 p / density(z). That is largest at 1 - 1e-9,
    // with about 2e-8.
    EXPECT_NEAR(normal_quantile(p), z, p > 0.99 ? 1e-7 : 1e-12 * (1 + std::fabs(z))) << p;
  }
  EXPECT_THROW(normal_quantile(0), Error);
  EXPECT_THROW(normal_quantile(1), Error);
}

TEST(Bootstrap, BcaEqualsScipy) {
  const json& c = fixtures()["bca"];
  const auto n = c["numerators"].get<std::vector<double>>(), d = c["denominators"].get<std::vector<double>>();
  const Estimate e = ratio(n, d, {.resamples = 200000, .seed = 3});
  // Two Monte Carlo runs of 200,000 are compared. A 2.5% percentile has a standard error of sqrt(.025 .975 / 2e5) =
  // 3.5e-4 in probability. With a density of at least about 1 / (4 widths) there, that is .15% of the width. The
  // tolerance allows four of them, for both runs.
  const double width = c["high"].get<double>() - c["low"].get<double>();
  EXPECT_NEAR(e.ci95.low, c["low"].get<double>(), 0.01 * width);
  EXPECT_NEAR(e.ci95.high, c["high"].get<double>(), 0.01 * width);
}

// The interval for a mean over sequences is tested with as few and as skewed sequences as a short evaluation has.
TEST(Bootstrap, CoversTheTruthAboutNinetyFiveTimesInAHundred) {
  constexpr int kTrials = 1500, kSequences = 40;
  const double truth = std::exp(0.125);  // mean of a lognormal distribution with sigma 1/2
  Rng rng(11);
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> n, d;
    for (int i = 0; i < kSequences; ++i) {
      d.push_back(20 + static_cast<double>(rng.below(20)));
      n.push_back(d.back() * std::exp(0.5 * rng.normal()));
    }
    const Estimate e = ratio(n, d, {.resamples = 400, .seed = static_cast<uint64_t>(trial)});
    covered += e.ci95.low <= truth && truth <= e.ci95.high;
  }
  // The binomial standard error at .95 is .0056. The bootstrap itself is known to undercover by order 1/n, some 1-2%
  // at n = 40. The test accepts .95 -.02 -4 standard errors .. +4 standard errors.
  const double coverage = static_cast<double>(covered) / kTrials;
  EXPECT_GT(coverage, 0.95 - 0.02 - 4 * 0.0056);
  EXPECT_LT(coverage, 0.95 + 4 * 0.0056);
}

TEST(Bootstrap, EdgesAndDeterminism) {
  const std::vector<double> n = {1, 2, 3, 5}, d = {2, 2, 4, 4}, ones(4, 1.0);
  EXPECT_DOUBLE_EQ(ratio(n, d).value, 11.0 / 12);
  EXPECT_EQ(ratio(n, d, {.seed = 5}).ci95.low, ratio(n, d, {.seed = 5}).ci95.low);
  EXPECT_NE(ratio(n, d, {.resamples = 50, .seed = 5}).ci95.low, ratio(n, d, {.resamples = 50, .seed = 6}).ci95.low);
  EXPECT_EQ(ratio(ones, ones).ci95.low, 1);
  EXPECT_EQ(ratio(ones, ones).ci95.high, 1);
  const Estimate one = ratio(std::vector<double>{3}, std::vector<double>{4});
  EXPECT_EQ(one.value, 0.75);
  EXPECT_TRUE(std::isnan(one.ci95.low));
  EXPECT_TRUE(to_json(one)["ci95"][0].is_null());
  EXPECT_TRUE(std::isnan(ratio(ones, std::vector<double>(4, 0.0)).value));
  EXPECT_THROW(ratio(n, std::vector<double>(3, 1.0)), Error);
}

TEST(Statistics, FitThroughTheOrigin) {
  const OriginFit exact = fit_through_origin(std::vector<double>{1, 2, 4}, std::vector<double>{3, 6, 12});
  EXPECT_DOUBLE_EQ(exact.slope, 3);
  EXPECT_DOUBLE_EQ(exact.r2, 1);
  EXPECT_LT(fit_through_origin(std::vector<double>{1, 2, 4}, std::vector<double>{3, 1, 0}).r2, 0.5);
  EXPECT_THROW(fit_through_origin({}, {}), Error);
}

}  // namespace
}  // namespace fidelio
