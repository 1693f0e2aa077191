#include "eval/statistics/proportions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/file.h"

namespace fidelio {
namespace {

// Both sides are sums of at most some hundred doubles, so 1e-10 leaves four orders of magnitude for their rounding.
constexpr double kSame = 1e-10;

PairedCounts table(int64_t both, int64_t lost, int64_t gained, int64_t neither) {
  return {static_cast<double>(both), static_cast<double>(lost), static_cast<double>(gained),
          static_cast<double>(neither), both + lost + gained + neither};
}

// These functions return P(X = k) and P(X >= k) by definition.
double term(int64_t k, int64_t n, double p) {
  double ways = 1;
  for (int64_t i = 0; i < k; ++i) ways *= static_cast<double>(n - i) / static_cast<double>(i + 1);
  return ways * std::pow(p, k) * std::pow(1 - p, n - k);
}

TEST(Proportions, WilsonEqualsScipy) {
  const auto fixtures = nlohmann::json::parse(read_text_file(FIDELIO_SOURCE_DIR "/src/eval/testdata/statistics.json"));
  for (const auto& c : fixtures["wilson"]) {
    const Estimate e = wilson(c["right"].get<double>(), c["total"]);
    EXPECT_NEAR(e.ci95.low, c["low"].get<double>(), kSame);
    EXPECT_NEAR(e.ci95.high, c["high"].get<double>(), kSame);
  }
  EXPECT_TRUE(std::isnan(wilson(0, 0).value));
  EXPECT_THROW(wilson(4, 3), Error);
}

TEST(Proportions, BinomialTailsAreSums) {
  for (int64_t n : {1, 2, 7, 40})
    for (double p : {0.01, 0.3, 0.5, 0.97})
      for (int64_t k = 0; k <= n + 1; ++k) {
        double sum = 0;
        for (int64_t j = k; j <= n; ++j) sum += term(j, n, p);
        EXPECT_NEAR(binomial_tail(k, n, p), sum, kSame) << k << " of " << n << " at " << p;
      }
  EXPECT_EQ(binomial_tail(1, 5, 0), 0);
  EXPECT_EQ(binomial_tail(5, 5, 1), 1);
}

// Clopper and Pearson define the interval so that at either end what was seen, or a more extreme outcome, has a
// chance of 2.5%.
TEST(Proportions, ExactIntervalsEndWhereTheTailsDo) {
  for (int64_t n : {1, 10, 40})
    for (int64_t k = 0; k <= n; ++k) {
      const Interval ci = clopper_pearson(k, n).ci95;
      if (k > 0)
        EXPECT_NEAR(binomial_tail(k, n, ci.low), 0.025, 1e-6);
      else
        EXPECT_EQ(ci.low, 0);
      if (k < n)
        EXPECT_NEAR(1 - binomial_tail(k + 1, n, ci.high), 0.025, 1e-6);
      else
        EXPECT_EQ(ci.high, 1);
    }
  EXPECT_NEAR(clopper_pearson(40, 40).ci95.low, std::pow(0.025, 1.0 / 40), 1e-8);  // 40 of 40 are right
}

// The coverage of the interval for differences is summed over all tables, for many truths. It is never below 95%.
TEST(Proportions, TheExactDifferenceCoversWhateverTheTruth) {
  constexpr int64_t kQuestions = 18;
  std::vector<std::vector<Interval>> intervals(kQuestions + 1);
  for (int64_t gained = 0; gained <= kQuestions; ++gained)
    for (int64_t lost = 0; gained + lost <= kQuestions; ++lost)
      intervals[static_cast<size_t>(gained)].push_back(
          paired_difference(table(kQuestions - gained - lost, lost, gained, 0)).ci95);
  for (double up : {0.0, 0.003, 0.02, 0.1, 0.25, 0.45})
    for (double down : {0.0, 0.003, 0.02, 0.1, 0.25, 0.45}) {
      double covered = 0;
      for (int64_t gained = 0; gained <= kQuestions; ++gained)
        for (int64_t lost = 0; gained + lost <= kQuestions; ++lost) {
          const Interval& ci = intervals[static_cast<size_t>(gained)][static_cast<size_t>(lost)];
          const double differ = up + down;
          const double chance = differ > 0
                                    ? term(gained + lost, kQuestions, differ) * term(gained, gained + lost, up / differ)
                                    : (gained + lost == 0 ? 1.0 : 0.0);
          if (ci.low <= up - down + 1e-9 && up - down - 1e-9 <= ci.high) covered += chance;
        }
      EXPECT_GE(covered, 0.95) << up << " gained, " << down << " lost";
    }
}

TEST(Proportions, DifferencesAreSymmetricAndNeverCertain) {
  const Estimate same = paired_difference(table(40, 0, 0, 0));
  EXPECT_EQ(same.value, 0);
  EXPECT_LT(same.ci95.low, -0.08);  // a loss of 1 - .025^(1/40) = .088 goes unseen in 40 questions once in 40 times
  EXPECT_GT(same.ci95.low, -0.12);
  EXPECT_NEAR(same.ci95.low, -same.ci95.high, 1e-8);
  const Estimate worse = paired_difference(table(70, 20, 5, 5)), better = paired_difference(table(70, 5, 20, 5));
  EXPECT_NEAR(worse.value, -0.15, 1e-12);
  EXPECT_NEAR(worse.ci95.low, -better.ci95.high, 1e-8);
  EXPECT_LT(worse.ci95.high, 0);
  // The exact method hands over to the score interval here; the two differ by less than a twentieth of the width.
  const Estimate exact = paired_difference(table(880, 50, 40, 30)), score = paired_difference(table(881, 50, 40, 30));
  const double width = exact.ci95.high - exact.ci95.low;
  EXPECT_NEAR(exact.ci95.low, score.ci95.low, 0.05 * width);
  EXPECT_NEAR(exact.ci95.high, score.ci95.high, 0.05 * width);
  EXPECT_TRUE(std::isnan(paired_difference({}).value));
}

TEST(Proportions, RatiosHaveScoreIntervals) {
  // For models that never differ, the interval is Wilson's for the questions answered right, seen from 1.
  const Estimate same = paired_ratio(table(30, 0, 0, 10));
  EXPECT_EQ(same.value, 1);
  EXPECT_NEAR(same.ci95.low, wilson(30, 30).ci95.low, 1e-6);
  EXPECT_NEAR(same.ci95.high, 1 / wilson(30, 30).ci95.low, 1e-6);
  // If the models are swapped, the ratio becomes its reciprocal, and so do its ends.
  const Estimate worse = paired_ratio(table(50, 20, 4, 26)), better = paired_ratio(table(50, 4, 20, 26));
  EXPECT_NEAR(worse.value * better.value, 1, 1e-12);
  EXPECT_NEAR(worse.ci95.low * better.ci95.high, 1, 1e-6);
  EXPECT_NEAR(worse.ci95.high * better.ci95.low, 1, 1e-6);
  EXPECT_LT(worse.ci95.high, 1);
  // More confidence gives a wider interval around the same value.
  const Estimate cautious = paired_ratio(table(50, 20, 4, 26), 0.975);
  EXPECT_EQ(cautious.value, worse.value);
  EXPECT_LT(cautious.ci95.low, worse.ci95.low);
  EXPECT_GT(cautious.ci95.high, worse.ci95.high);
  EXPECT_TRUE(std::isnan(paired_ratio(table(0, 0, 3, 4)).value));
  EXPECT_EQ(paired_ratio(table(0, 12, 0, 4)).ci95.low, 0);
}

TEST(Proportions, AMeanOfEstimatesIsNarrowerThanThey) {
  const Estimate one{1, {0.8, 1.1}};
  const Estimate mean = mean_of_estimates(std::vector<Estimate>(4, one));
  EXPECT_EQ(mean.value, 1);
  EXPECT_NEAR(mean.ci95.low, 0.9, 1e-12);  // half as wide, since the mean is of four equal estimates
  EXPECT_NEAR(mean.ci95.high, 1.05, 1e-12);
  // A recovery of 1 in each of ten tasks must not look like a loss, although ten tenths do not add up to 1 in FP64.
  EXPECT_EQ(mean_of_estimates(std::vector<Estimate>(10, one)).value, 1);
  EXPECT_THROW(mean_of_estimates({}), Error);
}

TEST(Proportions, VerdictSaysLosslessOnlyWithEvidence) {
  const auto scores = [](int64_t n, int64_t wrong) {
    std::vector<double> s(static_cast<size_t>(n), 1.0);
    for (int64_t i = 0; i < wrong; ++i) s[static_cast<size_t>(i * n / wrong)] = 0;
    return s;
  };
  // The same answers to 40 questions show nothing. The same answers to as many as are said to be needed show
  // losslessness.
  const Verdict few = compare_scores(scores(40, 0), scores(40, 0), 0.01);
  EXPECT_FALSE(few.lossless);
  EXPECT_FALSE(few.different);
  EXPECT_TRUE(few.too_few());
  EXPECT_EQ(few.needed, 370);
  EXPECT_TRUE(compare_scores(scores(370, 0), scores(370, 0), 0.01).lossless);
  const Verdict worse = compare_scores(scores(400, 60), scores(400, 20), 0.02);
  EXPECT_FALSE(worse.lossless);
  EXPECT_TRUE(worse.different);
  EXPECT_FALSE(worse.too_few());
  // The candidate is worse than the margin already, and more of the same would not show the contrary.
  EXPECT_EQ(compare_scores(scores(20, 3), scores(20, 2), 0.01).needed, 0);
  // Fractions, which means over seeds have, are rounded against the candidate.
  std::vector<double> seeds = scores(400, 0);
  seeds[0] = 2.0 / 3;
  EXPECT_LE(compare_scores(seeds, scores(400, 0), 0.02).difference.ci95.low,
            compare_scores(scores(400, 1), scores(400, 0), 0.02).difference.ci95.low + 1e-9);
  EXPECT_THROW(compare_scores(scores(3, 0), scores(4, 0), 0.02), Error);
}

}  // namespace
}  // namespace fidelio
