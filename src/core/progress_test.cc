#include "core/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

namespace fidelio {
namespace {

TEST(Outlook, TimeLeftFollowsFromWhatStagesTook) {
  // The two stages have weights 1 and 3. The first took 10 s, so the second should take 30.
  const std::vector<StageShare> stages = {{1, 10}, {3, 0}};
  Outlook o = outlook(stages, 1, 0);
  EXPECT_DOUBLE_EQ(o.fraction, 0.25);
  EXPECT_DOUBLE_EQ(o.seconds_left, 30);
  // Half of the second took 20 s, so its own rate counts and 20 s are left.
  o = outlook({{1, 10}, {3, 20}}, 1, 0.5);
  EXPECT_DOUBLE_EQ(o.fraction, 0.625);
  EXPECT_DOUBLE_EQ(o.seconds_left, 20);
  // In the first of three stages, the later ones count by their weight.
  EXPECT_DOUBLE_EQ(outlook({{2, 8}, {1, 0}, {1, 0}}, 0, 0.5).seconds_left, 8 + 16);
}

TEST(Outlook, NothingIsClaimedBeforeAnythingIsKnown) {
  EXPECT_LT(outlook({{1, 0}, {1, 0}}, 0, 0).seconds_left, 0);
  EXPECT_LT(outlook({{1, 0.5}}, 0, 0.1).seconds_left, 0);  // Half a second is too short to extrapolate from.
  EXPECT_EQ(outlook({}, 0, 0).fraction, 0);
}

std::string shown(ProgressMode mode, const std::function<void()>& work) {
  set_progress_mode(mode);
  testing::internal::CaptureStderr();
  work();
  set_progress_mode(ProgressMode::automatic);
  return testing::internal::GetCapturedStderr();
}

TEST(Progress, JsonNamesStagesAndTheirOrder) {
  const std::string text = shown(ProgressMode::json, [] {
    Stages stages("job", {{"first", 1}, {"second", 3}});
    stages.next();
    {
      Progress part("deep", 4);
      part.advance(4);
    }
    stages.next();
    Progress part("deep", 10);
    part.advance(5);
  });
  EXPECT_NE(text.find("\"stage\": \"first\", \"stage_number\": 1, \"stages\": 2"), std::string::npos) << text;
  EXPECT_NE(text.find("\"stage\": \"second\", \"stage_number\": 2, \"stages\": 2"), std::string::npos) << text;
  EXPECT_NE(text.find("\"fraction\": 1.0000"), std::string::npos) << text;  // This is the last line.
}

TEST(Progress, TicksWhileWorkIsSilent) {
  const std::string text = shown(ProgressMode::json, [] {
    Progress part("slow", 2);
    part.advance();
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  });
  // Lines are due after about one and two seconds and at the end; a loaded machine may lose one of them.
  EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(Progress, FailuresAndSilenceSayNothing) {
  EXPECT_EQ(shown(ProgressMode::none,
                  [] {
                    Progress part("quiet", 2);
                    part.advance(2);
                  }),
            "");
  EXPECT_EQ(shown(ProgressMode::plain,
                  [] {
                    try {
                      Progress part("fails", 2);
                      part.advance();
                      throw 1;
                    } catch (int) {
                    }
                  }),
            "");
}

TEST(Progress, WordsOnInterruptAreWhatWasSaidLast) {
  set_words_on_interrupt("one");
  set_words_on_interrupt("two");
  EXPECT_EQ(words_on_interrupt(), "two");
  set_words_on_interrupt("");
}

}  // namespace
}  // namespace fidelio
