#include "core/foreign/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace fidelio {
namespace {

TEST(Units, SizesAreReadAsPeopleWriteThem) {
  for (const auto& [text, bytes] : std::initializer_list<std::pair<const char*, int64_t>>{{"1200000", 1200000},
                                                                                          {"1.2MB", 1200000},
                                                                                          {"1.2 mb", 1200000},
                                                                                          {"800k", 800000},
                                                                                          {"3MiB", 3 << 20},
                                                                                          {"0.5GiB", 1 << 29},
                                                                                          {"2G", 2000000000}})
    EXPECT_EQ(parse_bytes(text), bytes) << text;
  for (const char* text : {"", "MB", "1.2QB", "-3", "0", "nan", "inf", "1e30", "3 M B x"})
    EXPECT_THROW(parse_bytes(text), Error) << text;
  EXPECT_EQ(bytes_text(24'430'000), "24.4 MB");
}

}  // namespace
}  // namespace fidelio
