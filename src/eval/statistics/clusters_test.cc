#include "eval/statistics/clusters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/rng.h"

namespace fidelio {
namespace {

// There are closed forms: with one degree of freedom the distribution is Cauchy's, and with two F(t) = 1/2 + t / (2
// sqrt(2 + t^2)).
TEST(Clusters, StudentsTIsItsClosedForms) {
  for (double t : {-7.0, -1.0, -0.1, 0.0, 0.4, 2.0, 30.0}) {
    EXPECT_NEAR(student_cdf(t, 1), 0.5 + std::atan(t) / 3.141592653589793, 1e-13) << t;
    EXPECT_NEAR(student_cdf(t, 2), 0.5 + t / (2 * std::sqrt(2 + t * t)), 1e-13) << t;
  }
  for (double p : {0.005, 0.025, 0.3, 0.5, 0.8, 0.975, 0.9999})
    for (double freedom : {1.0, 3.0, 11.0, 250.0})
      EXPECT_NEAR(student_cdf(student_quantile(p, freedom), freedom), p, 1e-12) << p << " " << freedom;
  EXPECT_NEAR(student_quantile(0.975, 1e7), 1.959963984540054, 1e-6);
  EXPECT_THROW(student_quantile(1, 3), Error);
}

// Documents have different lengths. Their own means are lognormal, as those of KL are (a spread of .3 to .6 was
// measured), and positions within a document add noise.
struct Population {
  double spread;
  double mean() const { return std::exp(0.5 * spread * spread); }
  void document(Rng& rng, std::vector<double>& sums, std::vector<double>& counts) const {
    const double count = 200 + static_cast<double>(rng.below(1800));
    sums.push_back(count * std::exp(spread * rng.normal()));
    counts.push_back(count);
  }
};

// In 400 repeats, a correct 95% interval covers 380 +- 4.4 times; five standard deviations are 22. Percentile
// intervals fail this with ten documents, and so do intervals that take windows for documents.
TEST(Clusters, IntervalsCoverWhatTheySay) {
  constexpr int kRepeats = 400, kAllowed = 22;
  for (int documents : {10, 40}) {
    const Population population{0.5};
    Rng rng(static_cast<uint64_t>(documents));
    int mean_covered = 0, next_covered = 0;
    for (int r = 0; r < kRepeats; ++r) {
      std::vector<double> sums, counts, next, next_count;
      for (int d = 0; d < documents; ++d) population.document(rng, sums, counts);
      const Estimate m = cluster_mean(sums, counts, {.resamples = 400, .seed = static_cast<uint64_t>(r)});
      mean_covered += m.ci95.low <= population.mean() && population.mean() <= m.ci95.high;
      population.document(rng, next, next_count);
      const Estimate one = next_document(sums, counts);
      const double truth = next[0] / next_count[0];
      next_covered += one.ci95.low <= truth && truth <= one.ci95.high;
    }
    EXPECT_NEAR(mean_covered, 0.95 * kRepeats, kAllowed) << documents;
    EXPECT_NEAR(next_covered, 0.95 * kRepeats, kAllowed) << documents;
  }
}

// Ten documents foresee the intervals of 28 others. With normal logarithms, 360 of 400 repeats keep the foreseen end,
// +- 6, and five deviations are 30. The mean's interval accounts for tails and keeps at least three of four: 300 +-
// 8.7. Bounds that always hold would make plans larger than necessary.
TEST(Clusters, ForeseenEndsAreKept) {
  constexpr int kRepeats = 400, kHere = 10, kThere = 28;
  const Population population{0.4};
  Rng rng(7);
  int mean_kept = 0, document_kept = 0;
  for (int r = 0; r < kRepeats; ++r) {
    std::vector<double> sums, counts, others, other_counts;
    for (int d = 0; d < kHere; ++d) population.document(rng, sums, counts);
    for (int d = 0; d < kThere; ++d) population.document(rng, others, other_counts);
    const Estimate m = cluster_mean(others, other_counts, {.resamples = 400, .seed = static_cast<uint64_t>(r)});
    mean_kept += m.ci95.high <= foreseen_mean(sums, counts, kThere).ci95.high;
    document_kept += next_document(others, other_counts).ci95.high <= foreseen_document(sums, counts, kThere).ci95.high;
  }
  EXPECT_GE(mean_kept, 0.75 * kRepeats - 43);
  EXPECT_LE(mean_kept, 0.9 * kRepeats + 30);
  EXPECT_NEAR(document_kept, 0.9 * kRepeats, 30);
  const std::vector<double> same = {2, 4, 6}, counts = {1, 2, 3};
  EXPECT_NEAR(foreseen_mean(same, counts, 5).ci95.high, 2, 1e-12);
  EXPECT_TRUE(std::isnan(foreseen_mean(same, counts, 1).ci95.high));
  EXPECT_DOUBLE_EQ(foreseen_mean(same, counts, 1).value, 2);
  // One strange document in ten moves the mean by half, but the foreseen end by less than a fifth.
  std::vector<double> sums = {1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.07, 0.93, 1.0};
  const std::vector<double> ones(10, 1.0);
  const double before = foreseen_mean(sums, ones, 28).ci95.high,
               document_before = foreseen_document(sums, ones, 28).ci95.high;
  sums[3] = 6;
  EXPECT_LT(foreseen_mean(sums, ones, 28).ci95.high, 1.15 * before);
  EXPECT_LT(foreseen_document(sums, ones, 28).ci95.high, 1.2 * document_before);
}

TEST(Clusters, WhatDocumentsMayMissAndWhatHoldsTogether) {
  EXPECT_NEAR(largest_unseen_share(28), 0.123, 0.0005);
  for (int64_t documents : {1, 20, 4364})  // the chance that none of them is of a kind with this share
    EXPECT_NEAR(std::pow(1 - largest_unseen_share(documents, 0.01), documents), 0.01, 1e-9);
  EXPECT_EQ(largest_unseen_share(0), 1);
  EXPECT_DOUBLE_EQ(confidence_of_each(0.95, 4), 0.9875);
  EXPECT_DOUBLE_EQ(confidence_of_each(0.95, 1), 0.95);
  EXPECT_DOUBLE_EQ(confidence_of_each(0.95, 0), 0.95);
}

TEST(Clusters, EdgesAreWhatTheyShouldBe) {
  const std::vector<double> same = {2, 4, 6}, counts = {1, 2, 3};
  EXPECT_DOUBLE_EQ(cluster_mean(same, counts).value, 2);
  EXPECT_NEAR(cluster_mean(same, counts).ci95.low, 2, 1e-12);
  EXPECT_NEAR(next_document(same, counts).ci95.high, 2, 1e-12);
  const std::vector<double> none = {0, 0, 0};  // nothing is lost when a model is compared with itself
  EXPECT_EQ(cluster_mean(none, counts).value, 0);
  EXPECT_LE(cluster_mean(none, counts).ci95.high, 1e-12);
  EXPECT_LE(next_document(none, counts).ci95.high, 1e-12);
  EXPECT_TRUE(std::isnan(cluster_mean(std::vector<double>{1}, std::vector<double>{1}).ci95.low));
  EXPECT_TRUE(std::isnan(cluster_mean({}, {}).value));
  EXPECT_THROW(cluster_mean(same, std::vector<double>{1}), Error);
  // The interval is wider with more confidence and with fewer documents.
  const std::vector<double> sums = {1, 3, 2, 5, 2, 4}, ones(6, 1.0);
  const auto width = [](const Estimate& e) { return e.ci95.high - e.ci95.low; };
  EXPECT_LT(width(cluster_mean(sums, ones)), width(cluster_mean(sums, ones, {.confidence = 0.99})));
  EXPECT_LT(width(next_document(sums, ones)), width(next_document(std::span(sums).first(4), std::span(ones).first(4))));
  EXPECT_LT(width(cluster_mean(sums, ones)), width(next_document(sums, ones)));
}

}  // namespace
}  // namespace fidelio
