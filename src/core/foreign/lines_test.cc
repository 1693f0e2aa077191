#include "core/foreign/lines.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace fidelio {
namespace {

TEST(Lines, AreNumberedAsInTheFileAndBlankOnesPassedOver) {
  using Lines = std::vector<std::pair<int64_t, std::string>>;
  const auto lines_of = [](std::string_view text) {
    Lines lines;
    for_each_line(text, [&](std::string_view line, int64_t number) { lines.emplace_back(number, line); });
    return lines;
  };
  EXPECT_EQ(lines_of(""), Lines{});
  EXPECT_EQ(lines_of(" \t\r\n\n\r"), Lines{});
  EXPECT_EQ(lines_of("a"), (Lines{{1, "a"}}));
  EXPECT_EQ(lines_of("\na b\r\n \t\n c\r d\n\n"), (Lines{{2, "a b"}, {4, " c\r d"}}));
}

}  // namespace
}  // namespace fidelio
