#include "eval/fidelity/tails.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/rng.h"

namespace fidelio {
namespace {

struct OnePosition {
  double kl, ear, confidence;
  int64_t position;
};

std::vector<OnePosition> skewed_positions(int64_t n) {
  Rng rng(7);
  std::vector<OnePosition> all;
  for (int64_t i = 0; i < n; ++i) {
    const double kl = 0.002 * std::exp(2 * rng.normal());
    all.push_back({kl, 1 - std::sqrt(kl / 3), rng.uniform(), 1 + i % 511});
  }
  return all;
}

Tails tails_of(const std::vector<OnePosition>& all) {
  TailCounter counter;
  for (const OnePosition& p : all) counter.add(p.kl, p.ear, p.confidence, p.position);
  return counter.finish();
}

TEST(Tails, QuantilesAreThoseOfTheSortedValuesWithinTheErrorStated) {
  const std::vector<OnePosition> all = skewed_positions(20000);
  std::vector<double> kl;
  for (const OnePosition& p : all) kl.push_back(p.kl);
  std::sort(kl.begin(), kl.end());
  const Tails tails = tails_of(all);
  const auto exact = [&](double share) {
    return kl[static_cast<size_t>(std::llround(share * static_cast<double>(kl.size()))) - 1];
  };
  EXPECT_NEAR(tails.kl_p50 / exact(0.5), 1, kTailError);
  EXPECT_NEAR(tails.kl_p90 / exact(0.9), 1, kTailError);
  EXPECT_NEAR(tails.kl_p99 / exact(0.99), 1, kTailError);
  EXPECT_NEAR(tails.kl_p999 / exact(0.999), 1, kTailError);
  EXPECT_EQ(tails.kl_largest, kl.back());
  EXPECT_EQ(tails.ear_lowest, 1 - std::sqrt(kl.back() / 3));
  EXPECT_LE(std::exp2(0.5 / kBinsAnOctave) - 1, kTailError);
}

TEST(Tails, OfFewPositionsAHighQuantileIsTheLargest) {
  const Tails tails = tails_of({{0.5, 0.8, 0.5, 1}, {0.25, 0.9, 0.5, 2}, {3, 0.4, 0.5, 3}});
  EXPECT_EQ(tails.kl_p999, 3);
  EXPECT_EQ(tails.kl_p99, 3);
  EXPECT_NEAR(tails.kl_p50, 0.5, 0.5 * kTailError);
}

TEST(Tails, OfAModelWithItselfAreZero) {
  const Tails tails = tails_of({{0, 1, 0.5, 1}, {0, 1, 0.5, 2}});
  EXPECT_EQ(tails.kl_p50, 0);
  EXPECT_EQ(tails.kl_largest, 0);
  EXPECT_EQ(tails.ear_lowest, 1);
}

TEST(Tails, BandsHoldEveryPositionOnce) {
  const Tails tails = tails_of(skewed_positions(5000));
  ASSERT_EQ(tails.by_confidence.size(), 5u);
  ASSERT_EQ(tails.by_position.size(), 9u);  // the bands begin at 1, 2, 4 .. 256 preceding tokens
  EXPECT_EQ(tails.by_position[8].from, 256);
  int64_t by_confidence = 0, by_position = 0;
  for (const TailBand& b : tails.by_confidence) by_confidence += b.positions;
  for (const TailBand& b : tails.by_position) by_position += b.positions;
  EXPECT_EQ(by_confidence, 5000);
  EXPECT_EQ(by_position, 5000);
}

TEST(Tails, ABandIsTheMeanOfItsPositions) {
  const Tails tails = tails_of({{1, 0.5, 0.79, 3}, {3, 0.7, 0.61, 4}, {5, 0.1, 1, 7}});
  EXPECT_EQ(tails.by_confidence[3].positions, 2);
  EXPECT_EQ(tails.by_confidence[3].kl, 2);
  EXPECT_NEAR(tails.by_confidence[3].ear, 0.6, 1e-15);
  EXPECT_EQ(tails.by_confidence[4].kl, 5);  // a confidence of exactly 1 belongs to the last band
  EXPECT_TRUE(std::isnan(tails.by_confidence[0].kl));
  EXPECT_EQ(tails.by_position[1].kl, 1);
  EXPECT_EQ(tails.by_position[2].positions, 2);
  EXPECT_EQ(tails.by_position[2].kl, 4);
  EXPECT_TRUE(std::isnan(tails.by_position[0].ear));
}

TEST(Tails, ComeBackFromTheirJson) {
  const Tails tails = tails_of({{1, 0.5, 0.79, 3}, {3, 0.7, 0.61, 4}, {5, 0.1, 1, 700}});
  const nlohmann::json json = to_json(tails);
  EXPECT_EQ(to_json(tails_from_json(nlohmann::json::parse(json.dump()))), json);
  EXPECT_EQ(json["kl"]["largest"], 5);
  EXPECT_TRUE(json["by_confidence"][0]["kl"].is_null());
  EXPECT_TRUE(to_json(Tails{}).is_null());
  EXPECT_EQ(tails_from_json(nullptr).positions, 0);
  EXPECT_THROW(tails_from_json({{"positions", 3}}), nlohmann::json::exception);
}

}  // namespace
}  // namespace fidelio
