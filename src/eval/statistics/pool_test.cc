#include "eval/statistics/pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/rng.h"
#include "eval/statistics/clusters.h"

namespace fidelio {
namespace {

TEST(Pool, OrdinaryDocumentsAreScaledAndStrangeOnesAreNot) {
  DocumentPool pool;
  const std::vector<double> ones(5, 1.0);
  // The medians are 1 and 10. The median distances from them, as logarithms, are .1 and .2.
  const auto at = [](double middle, std::vector<double> logs) {
    for (double& x : logs) x = middle * std::exp(x);
    return logs;
  };
  pool.add(0, at(1, {-0.1, -0.05, 0, 0.1, 2}), ones);
  pool.add(1, at(10, {-0.2, -0.2, 0, 0.1, 0.2}), ones);
  pool.add(2, std::vector<double>{5, 5, 5}, std::vector<double>(3, 1.0));  // these are too few to tell anything
  pool.add(3, std::vector<double>(5, 0.0), ones);                          // these lose nothing
  std::vector<double> logs = pool.ratios(0);
  for (double& x : logs) x = std::log(x);
  const auto near = [](double x) { return testing::DoubleNear(x, 1e-12); };
  EXPECT_THAT(logs, testing::ElementsAre(near(-0.1), near(-0.05), near(0), near(0.1), near(2), near(-0.1), near(-0.1),
                                         near(0), near(0.05), near(0.1)));
  logs = pool.ratios(1);
  EXPECT_NEAR(std::log(logs[0]), -0.2, 1e-12);
  EXPECT_NEAR(std::log(logs[4]), 2, 1e-12);
  EXPECT_EQ(pool.ratios(2).size(), 10u);  // a kind whose own spread is unknown takes the ratios as they are
  EXPECT_NEAR(std::log(pool.ratios(2)[9]), 0.2, 1e-12);
  // Documents of the same kind that were measured under another plan are compared with their own median.
  DocumentPool twice = pool;
  twice.add(0, at(3, {-0.1, -0.1, 0, 0.1, 0.1}), ones);
  EXPECT_EQ(twice.ratios(0).size(), 15u);
  EXPECT_NEAR(std::log(twice.ratios(0)[10]), -0.1, 1e-12);
  EXPECT_NEAR(std::log(twice.ratios(1)[10]), -0.2, 1e-12);
  EXPECT_THROW(pool.add(0, ones, std::vector<double>{1}), Error);
}

// These are documents of four kinds, of which one in twenty loses three times as much as the others.
struct SkewedDocuments {
  std::vector<double> sums, counts;
  SkewedDocuments(Rng& rng, int documents, double strange) {
    for (int i = 0; i < documents; ++i) {
      counts.push_back(1000 + static_cast<double>(rng.below(1000)));
      const double times = rng.uniform() < strange ? 3 : 1;
      sums.push_back(counts.back() * times * std::exp(0.1 * rng.normal()));
    }
  }
};

// The interval promises an error of 2.5% on one side, which is 30 of 300 repeats of four kinds. The kinds of one
// repeat share the pool, so only the repeats count as independent; five standard deviations, with the four kinds
// alike, are then 22. Without the pool a quarter of the intervals is wrong. Rare documents may cost twice the
// promised error, which is 60.
TEST(Pool, APooledMeanKnowsOfRareDocuments) {
  constexpr int kRepeats = 300, kKinds = 4;
  for (const double strange : {0.0, 0.05}) {
    const double truth = (1 + 2 * strange) * std::exp(0.005);
    Rng rng(3);
    int wrong = 0, alone_wrong = 0, document_wrong = 0;
    for (int r = 0; r < kRepeats; ++r) {
      DocumentPool pool;
      std::vector<SkewedDocuments> kinds;
      for (int kind = 0; kind < kKinds; ++kind) {
        kinds.emplace_back(rng, 28, strange);
        const SkewedDocuments tried(rng, 14, strange);
        pool.add(kind, kinds.back().sums, kinds.back().counts);
        pool.add(kind, tried.sums, tried.counts);
      }
      for (int kind = 0; kind < kKinds; ++kind) {
        const SkewedDocuments& own = kinds[static_cast<size_t>(kind)];
        const std::vector<double> ratios = pool.ratios(kind);
        const ClusterOptions options{.resamples = 300, .seed = static_cast<uint64_t>(r), .ratios = ratios};
        wrong += truth > cluster_mean(own.sums, own.counts, options).ci95.high;
        alone_wrong += truth > cluster_mean(own.sums, own.counts, {.resamples = 300}).ci95.high;
        const SkewedDocuments fresh(rng, 1, strange);
        document_wrong += fresh.sums[0] / fresh.counts[0] > next_document(own.sums, own.counts, 0.95, ratios).ci95.high;
      }
    }
    EXPECT_LE(wrong, (strange > 0 ? 60 : 30) + 22) << strange;
    EXPECT_LE(document_wrong, (strange > 0 ? 60 : 30) + 22) << strange;
    if (strange > 0) {
      EXPECT_GT(alone_wrong, 0.15 * kRepeats * kKinds);
    }
  }
}

// A pool of only these documents gives an interval like their own, and a ratio that is far out makes the interval
// wider.
TEST(Pool, StrangeRatiosWidenAnInterval) {
  Rng rng(5);
  const SkewedDocuments own(rng, 28, 0);
  DocumentPool pool;
  pool.add(0, own.sums, own.counts);
  std::vector<double> ratios = pool.ratios(0);
  const auto width = [](const Estimate& e) { return e.ci95.high - e.ci95.low; };
  const double alone = width(cluster_mean(own.sums, own.counts)),
               alike = width(cluster_mean(own.sums, own.counts, {.ratios = ratios})),
               next_alone = width(next_document(own.sums, own.counts)),
               next_alike = width(next_document(own.sums, own.counts, 0.95, ratios));
  EXPECT_NEAR(alike, alone, 0.1 * alone);
  EXPECT_GE(next_alike, next_alone);
  ratios.push_back(3);
  EXPECT_GT(width(cluster_mean(own.sums, own.counts, {.ratios = ratios})), 1.5 * alike);
  EXPECT_GT(width(next_document(own.sums, own.counts, 0.95, ratios)), 1.5 * next_alike);
  // A text that loses nothing at all has no interval, whatever others lose.
  const std::vector<double> none(28, 0.0);
  EXPECT_EQ(cluster_mean(none, own.counts, {.ratios = ratios}).value, 0);
  EXPECT_LE(cluster_mean(none, own.counts, {.ratios = ratios}).ci95.high, 1e-12);
}

}  // namespace
}  // namespace fidelio
