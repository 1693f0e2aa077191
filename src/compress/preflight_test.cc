#include "compress/preflight.h"

#include <gtest/gtest.h>

namespace fidelio {
namespace {

constexpr int64_t kMillion = 1'000'000, kBillion = 1'000'000'000;

// A GPU passes many tokens in seconds, and tokens get dearer with the model.
TEST(Defaults, TokensSuitTheModelAndTheDevice) {
  EXPECT_EQ(calibration_tokens_for(135 * kMillion, true), 131072);
  EXPECT_EQ(calibration_tokens_for(1000 * kMillion, true), 65536);
  EXPECT_EQ(calibration_tokens_for(8 * kBillion, true), 32768);
  EXPECT_EQ(calibration_tokens_for(1 * kMillion, false), 131072);
  EXPECT_EQ(calibration_tokens_for(135 * kMillion, false), 32768);
  EXPECT_EQ(search_tokens_for(1540 * kMillion, true), 16384);
  EXPECT_EQ(search_tokens_for(8 * kBillion, true), 4096);
  EXPECT_EQ(search_tokens_for(26 * kMillion, false), 4096);
  EXPECT_EQ(search_tokens_for(1540 * kMillion, false), 2048);
}

}  // namespace
}  // namespace fidelio
