#include "step/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "core/rng.h"

namespace fidelio {
namespace {

using testing::ElementsAre;

// Slots lie as drawn in step/routes.h, and of equal logits the first expert is taken.
TEST(Routing, DealsRowsOutToTheirExperts) {
  Routes routes;
  const std::vector<float> logits = {0, 0, 5, 0, 0, 0, 0, 4,   // 2 7
                                     0, 0, 3, 0, 0, 3, 0, 0,   // 2 5
                                     0, 0, 0, 0, 0, 2, 0, 9};  // 5 7
  route(logits, {8, 2, true}, {}, routes);
  EXPECT_THAT(routes.rows, ElementsAre(0, 1, 1, 2, 0, 2));
  EXPECT_THAT(routes.slots, ElementsAre(0, 4, 1, 2, 3, 5));
  ASSERT_EQ(routes.groups.size(), 3u);
  EXPECT_EQ(routes.groups[1].expert, 5);
  EXPECT_EQ(routes.groups[1].first_slot, 2);
  EXPECT_EQ(routes.groups[1].slots, 2);
  route(std::vector<float>(8, 1.0f), {8, 3, true}, {}, routes);
  EXPECT_THAT(routes.groups, testing::SizeIs(3));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(routes.groups[i].expert, static_cast<int>(i));
}

// Every row's shares must be those of its k largest logits, by the softmax over all experts or over those k, computed
// in double and rounded once.
TEST(Routing, SharesAreTheSoftmaxOfTheLargest) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    const int E = 1 + static_cast<int>(rng.uniform() * 40), k = 1 + static_cast<int>(rng.uniform() * E),
              n = 1 + round % 7;
    std::vector<float> logits(static_cast<size_t>(n * E));
    for (float& x : logits) x = static_cast<float>(rng.normal() * 20);
    const bool renormalised = round % 2 == 0;
    Routes routes;
    route(logits, {E, k, renormalised}, {}, routes);
    ASSERT_EQ(routes.count(), n * k);
    std::map<int32_t, int> expert_of;
    for (const ExpertRows& group : routes.groups)
      for (int64_t slot = group.first_slot; slot < group.first_slot + group.slots; ++slot)
        expert_of[static_cast<int32_t>(slot)] = group.expert;
    for (int row = 0; row < n; ++row) {
      const std::span own(logits.data() + row * E, static_cast<size_t>(E));
      std::vector<float> sorted(own.begin(), own.end());
      std::ranges::sort(sorted, std::greater());
      double sum = 0;
      for (int i = 0; i < (renormalised ? k : E); ++i)
        sum += std::exp(double{sorted[static_cast<size_t>(i)]} - sorted[0]);
      int before = -1;
      for (int i = 0; i < k; ++i) {
        const int32_t slot = routes.slots[static_cast<size_t>(row * k + i)];
        EXPECT_EQ(routes.rows[static_cast<size_t>(slot)], row);
        const int expert = expert_of.at(slot);
        EXPECT_GT(expert, before) << "a row's slots ascend";
        before = expert;
        const float logit = own[static_cast<size_t>(expert)];
        EXPECT_GE(logit, sorted[static_cast<size_t>(k - 1)]);
        const double share = std::exp(double{logit} - sorted[0]) / sum;
        EXPECT_NEAR(routes.shares[static_cast<size_t>(slot)], share, share * 0x1p-23 + 1e-45);
      }
    }
  }
}

// The experts of a row must not depend on the rows beside it.
TEST(Routing, ARowChoosesAlone) {
  Rng rng(2);
  constexpr int E = 13, k = 4, n = 50;
  std::vector<float> logits(E * n);
  for (float& x : logits) x = static_cast<float>(rng.normal());
  Routes all, one;
  route(logits, {E, k, true}, {}, all);
  for (int row = 0; row < n; ++row) {
    route(std::span(logits).subspan(static_cast<size_t>(row * E), E), {E, k, true}, {}, one);
    for (size_t i = 0; i < k; ++i)
      EXPECT_EQ(one.shares[static_cast<size_t>(one.slots[i])],
                all.shares[static_cast<size_t>(all.slots[static_cast<size_t>(row * k) + i])]);
  }
}

// Returns the shares of a row's experts by their numbers.
std::map<int, float> shares_of(const std::vector<float>& logits, const RoutingRule& rule,
                               const std::vector<float>& adjustments) {
  Routes routes;
  route(logits, rule, adjustments, routes);
  std::map<int, float> shares;
  for (const ExpertRows& group : routes.groups)
    shares[group.expert] = routes.shares[static_cast<size_t>(group.first_slot)];
  return shares;
}
float sigmoid(double x) { return static_cast<float>(1 / (1 + std::exp(-x))); }

// A correction changes which experts are chosen and not their shares.
TEST(Routing, CorrectionsCountForTheChoiceAlone) {
  RoutingRule rule{.experts = 4, .per_row = 2, .scoring = Scoring::sigmoid};
  const std::vector<float> logits = {2, 1, 0, -1}, adjustments = {0, -1, 0, 1, 1, 1, 1, 1};
  EXPECT_EQ(shares_of(logits, rule, {}), (std::map<int, float>{{0, sigmoid(2)}, {1, sigmoid(1)}}));
  rule.corrected = true;
  EXPECT_EQ(shares_of(logits, rule, adjustments), (std::map<int, float>{{0, sigmoid(2)}, {3, sigmoid(-1)}}));
  rule.scoring = Scoring::softmax;
  const auto shares = shares_of(logits, rule, adjustments);
  const double all = std::exp(2) + std::exp(1) + 1 + std::exp(-1);
  EXPECT_EQ(shares, (std::map<int, float>{{0, static_cast<float>(std::exp(2) / all)},
                                          {3, static_cast<float>(std::exp(-1) / all)}}));
}

// The groups whose two best sum to most are kept, although the largest score is in another.
TEST(Routing, ExpertsAreOfTheBestGroups) {
  const RoutingRule rule{.experts = 9, .per_row = 3, .scoring = Scoring::sigmoid, .groups = 3, .groups_per_row = 2};
  const std::vector<float> logits = {3, -3, -3, 1, 0.5f, -2, 0, 1.5f, 2};
  EXPECT_EQ(shares_of(logits, rule, {}), (std::map<int, float>{{3, sigmoid(1)}, {7, sigmoid(1.5)}, {8, sigmoid(2)}}));
}

TEST(Routing, SharesAreScaledAfterTheirSum) {
  const RoutingRule rule{
      .experts = 3, .per_row = 2, .renormalised = true, .scoring = Scoring::sigmoid, .scaled = true, .factor = 2.5};
  const double a = 1 / (1 + std::exp(-1.0)), b = 0.5;
  EXPECT_EQ(shares_of({1, 0, -1}, rule, {0, 0, 0, 3, 0.5f, 7}),
            (std::map<int, float>{{0, static_cast<float>(a / (a + b) * 2.5 * 3)},
                                  {1, static_cast<float>(b / (a + b) * 2.5 * 0.5)}}));
  // The sum of sigmoids that are next to nothing is no 0.
  for (const auto& [expert, share] : shares_of({-800, -800, -800}, rule, {0, 0, 0, 1, 1, 1})) EXPECT_EQ(share, 0);
}

// In a damaged model some experts have logits that are NaN. They must come last, and every row must have k experts
// all the same.
TEST(Routing, TakesWhatIsNoNumberLast) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  Routes routes;
  route(std::vector<float>{nan, 1, nan, -inf, 2}, {5, 3, true}, {}, routes);
  ASSERT_EQ(routes.groups.size(), 3u);
  EXPECT_EQ(routes.groups[0].expert, 1);
  EXPECT_EQ(routes.groups[1].expert, 3);
  EXPECT_EQ(routes.groups[2].expert, 4);
  EXPECT_EQ(routes.shares[1], 0);
  route(std::vector<float>(5, nan), {5, 2, false}, {}, routes);
  EXPECT_EQ(routes.count(), 2);
}

}  // namespace
}  // namespace fidelio
