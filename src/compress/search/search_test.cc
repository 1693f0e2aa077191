#include "compress/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fidelio {
namespace {

using testing::ElementsAre;

// A front of plans of these sizes; larger ones have less KL.
std::vector<Plan> front_of(std::initializer_list<int64_t> sizes) {
  std::vector<Plan> front;
  for (const int64_t bytes : sizes) {
    Plan plan;
    plan.bytes = bytes;
    plan.kl = 1.0 / static_cast<double>(bytes);
    front.push_back(plan);
  }
  return front;
}

std::vector<int64_t> sizes_of(const std::vector<Plan>& plans) {
  std::vector<int64_t> sizes;
  for (const Plan& p : plans) sizes.push_back(p.bytes);
  return sizes;
}

TEST(Ladder, GoesDownFromALargerPlanInSteps) {
  const std::vector<Plan> front = front_of({80, 84, 88, 92, 96, 100, 104, 108, 112});
  // A bit of each of 80 parameters is ten bytes.
  EXPECT_THAT(sizes_of(ladder_of(front, front[5], 80, {.larger = {1}, .step = 0.4, .most = 3})),
              ElementsAre(112, 100, 96, 92, 88));
  EXPECT_THAT(sizes_of(ladder_of(front, front[5], 80, {.larger = {0.5}, .step = 0.8, .most = 9})),
              ElementsAre(108, 100, 92, 84));
}

TEST(Ladder, MayBeginWithSeveralLargerPlans) {
  const std::vector<Plan> front = front_of({80, 84, 88, 92, 96, 100, 104, 108, 112});
  EXPECT_THAT(sizes_of(ladder_of(front, front[4], 80, {.larger = {1.5, 0.5}, .step = 1, .most = 1})),
              ElementsAre(112, 104, 96, 84));
  EXPECT_THAT(sizes_of(ladder_of(front, front[7], 80, {.larger = {1, 0.25}, .step = 1, .most = 0})),
              ElementsAre(112, 108));
}

// Steps finer than the front give no plan twice, the widest plan is the largest there is, and a ladder of no steps still
// begins with a larger plan.
TEST(Ladder, HasEveryPlanOnce) {
  const std::vector<Plan> front = front_of({80, 100, 120});
  EXPECT_THAT(sizes_of(ladder_of(front, front[1], 80, {.larger = {9}, .step = 0.1, .most = 30})),
              ElementsAre(120, 100, 80));
  EXPECT_THAT(sizes_of(ladder_of(front, front[2], 80, {.larger = {9}, .step = 1, .most = 1})), ElementsAre(120, 100));
  EXPECT_THAT(sizes_of(ladder_of(front, front[1], 80, {.larger = {0.25}, .step = 1, .most = 0})),
              ElementsAre(120, 100));
}

}  // namespace
}  // namespace fidelio
