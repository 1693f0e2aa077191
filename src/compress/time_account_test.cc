#include "compress/time_account.h"

#include <gtest/gtest.h>

namespace fidelio {
namespace {

// Waits until the clock has gone on, so that every part has some time.
void work() {
  const double start = Seconds::now().wall;
  while (Seconds::now().wall - start < 1e-3) continue;
}

TEST(TimeAccount, CountsEverySecondOnceAndByTheOrderOfBeginning) {
  const double start = Seconds::now().wall;
  TimeAccount time("reading");
  work();
  time.phase("search");
  for (int i = 0; i < 2; ++i) {
    const auto trial = time.part("trial");
    const auto building = time.part("building");
    work();
  }
  work();
  const auto parts = time.parts();
  const double whole = Seconds::now().wall - start;
  ASSERT_EQ(parts.size(), 4u);
  double sum = 0;
  for (const auto& [name, spent] : parts) sum += spent.wall;
  EXPECT_EQ(parts[0].first, "reading");
  EXPECT_EQ(parts[1].first, "search");
  EXPECT_EQ(parts[3].first, "building");
  EXPECT_GE(parts[0].second.wall, 1e-3);
  EXPECT_GE(parts[1].second.wall, 1e-3);
  EXPECT_GE(parts[3].second.wall, 2e-3);
  EXPECT_LE(sum, whole);
  EXPECT_LT(parts[2].second.wall, parts[3].second.wall);
}

}  // namespace
}  // namespace fidelio
