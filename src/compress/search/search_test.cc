#include "compress/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fidelio {
namespace {

using testing::ElementsAre;

// Returns a front of plans of these sizes. Larger ones have less KL.
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

TEST(Ladder, GoesDownInStepsFromThePlanThatIsExpectedToHold) {
  const std::vector<Plan> front = front_of({80, 84, 88, 92, 96, 100, 104, 108, 112});
  // A bit is ten bytes where there are 80 parameters.
  const Ladder a = ladder_of(front, front[5], 80, {.larger = {1}, .step = 0.4, .most = 3});
  EXPECT_THAT(sizes_of(a.expected), ElementsAre(100, 96, 92, 88));
  EXPECT_THAT(sizes_of(a.larger), ElementsAre(112));
  const Ladder b = ladder_of(front, front[5], 80, {.larger = {0.5}, .step = 0.8, .most = 9});
  EXPECT_THAT(sizes_of(b.expected), ElementsAre(100, 92, 84));
  EXPECT_THAT(sizes_of(b.larger), ElementsAre(108));
}

TEST(Ladder, HasLargerPlansFromTheLargestDown) {
  const std::vector<Plan> front = front_of({80, 84, 88, 92, 96, 100, 104, 108, 112});
  EXPECT_THAT(sizes_of(ladder_of(front, front[4], 80, {.larger = {1.5, 0.5}, .step = 1, .most = 1}).larger),
              ElementsAre(112, 104));
  EXPECT_THAT(sizes_of(ladder_of(front, front[7], 80, {.larger = {1, 0.25}, .step = 1, .most = 0}).larger),
              ElementsAre(112));
}

// Steps finer than the front give no plan twice. The widest plan has none above it. A ladder of no steps has only the
// plan.
TEST(Ladder, HasEveryPlanOnce) {
  const std::vector<Plan> front = front_of({80, 100, 120});
  EXPECT_THAT(sizes_of(ladder_of(front, front[1], 80, {.larger = {9}, .step = 0.1, .most = 30}).expected),
              ElementsAre(100, 80));
  EXPECT_THAT(ladder_of(front, front[2], 80, {.larger = {9}, .step = 1, .most = 1}).larger, testing::IsEmpty());
  const Ladder alone = ladder_of(front, front[1], 80, {.larger = {1, 0.25}, .step = 1, .most = 0});
  EXPECT_THAT(sizes_of(alone.expected), ElementsAre(100));
  EXPECT_THAT(sizes_of(alone.larger), ElementsAre(120));
}

}  // namespace
}  // namespace fidelio
