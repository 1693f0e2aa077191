#include "compress/certificate/ladder_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace fidelio {
namespace {

using testing::HasSubstr;

LadderStep step(double bits, bool met, double level) { return {bits, {0.98}, {0.002}, {0.97}, met, level}; }

std::string refusal(const std::vector<LadderStep>& ladder) {
  try {
    check_ladder(ladder);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(LadderSteps, AreOfTheExpectedPlanAndSmallerOnesOrOfLargerOnes) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({step(6, true, 0.0225)}), "");
  EXPECT_EQ(refusal({step(6, true, 0.0225), step(5.9, true, 0.0225), step(5.8, false, 0.0225)}), "");
  EXPECT_EQ(refusal({step(6, false, 0.0225), step(7, true, 0.0025), step(6.2, false, 0.0025)}), "");
  EXPECT_THAT(refusal({step(6, false, 0.0225)}), HasSubstr("no plan of its ladder held"));
  EXPECT_THAT(refusal({step(6, false, 0.0225), step(7, false, 0.0025)}), HasSubstr("no plan of its ladder held"));
  EXPECT_THAT(refusal({step(6, true, 0.0225), step(5.9, false, 0.0225), step(5.8, true, 0.0225)}),
              HasSubstr("plan 2 of its ladder failed, and others were tested after it"));
}

// Whoever tests larger plans as leniently as the expected one, or in another order, errs more often than is stated.
TEST(LadderSteps, HaveTheLevelsAndTheOrderThatWereFixed) {
  EXPECT_THAT(refusal({step(6, true, 0.025)}), HasSubstr("plan 1 of its ladder was tested at the level 0.025"));
  EXPECT_THAT(refusal({step(6, false, 0.0225), step(7, true, 0.0225)}),
              HasSubstr("plan 2 of its ladder was tested at the level 0.0225, expected 0.0025"));
  EXPECT_THAT(refusal({step(6, true, 0.0225), step(6.1, true, 0.0225)}),
              HasSubstr("plan 2 of its ladder is no smaller than the one before it"));
  EXPECT_THAT(refusal({step(6, false, 0.0225), step(5.9, true, 0.0025)}),
              HasSubstr("plan 2 of its ladder is no larger than the one before it"));
  EXPECT_THAT(refusal({step(6, false, 0.0225), step(6.2, true, 0.0025), step(7, true, 0.0025)}),
              HasSubstr("plan 3 of its ladder is no smaller than the one before it"));
}

TEST(LadderSteps, SayAtWhichLevelTheCertifiedPlanWasTested) {
  EXPECT_EQ(certified_level({}), 0.025);
  EXPECT_EQ(certified_level({step(6, true, 0.0225), step(5.9, false, 0.0225)}), 0.0225);
  EXPECT_EQ(certified_level({step(6, false, 0.0225), step(7, true, 0.0025), step(6.2, false, 0.0025)}), 0.0025);
  EXPECT_DOUBLE_EQ(kExpectedLevel + kLargerLevel, 0.025);
}

TEST(LadderSteps, AreReadAsTheyWereWritten) {
  const LadderStep s = step(6.25, true, 0.0025);
  EXPECT_EQ(to_json(ladder_step_from_json(to_json(s))), to_json(s));
  EXPECT_EQ(to_json(s).at("level"), 0.0025);
}

}  // namespace
}  // namespace fidelio
