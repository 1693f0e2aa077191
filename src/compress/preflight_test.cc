#include "compress/preflight.h"

#include <gtest/gtest.h>

namespace fidelio {
namespace {

constexpr int64_t kMillion = 1'000'000, kBillion = 1'000'000'000;

// A GPU passes many tokens in seconds, and tokens get dearer with the model.
TEST(Defaults, TokensSuitTheModelAndTheDevice) {
  EXPECT_EQ(calibration_tokens_for(135 * kMillion, true), 131072);
  EXPECT_EQ(calibration_tokens_for(1000 * kMillion, true), 98304);
  EXPECT_EQ(calibration_tokens_for(8 * kBillion, true), 32768);
  EXPECT_EQ(calibration_tokens_for(1 * kMillion, false), 131072);
  EXPECT_EQ(calibration_tokens_for(135 * kMillion, false), 32768);
  EXPECT_EQ(search_tokens_for(1540 * kMillion, true), 16384);
  EXPECT_EQ(search_tokens_for(8 * kBillion, true), 4096);
  EXPECT_EQ(search_tokens_for(26 * kMillion, false), 4096);
  EXPECT_EQ(search_tokens_for(1540 * kMillion, false), 2048);
}

// A CPU's batches are as small as they were. A GPU's have as many rows as 64 million inputs of the widest linear make.
TEST(Defaults, BatchesSuitTheModelAndTheDevice) {
  ModelConfig config;
  config.L = 1, config.hk = 1, config.d = 576, config.h = 9, config.e = 64, config.f = 1536;
  EXPECT_EQ(batch_rows_for(config, 512, false), 2048);
  EXPECT_EQ(batch_rows_for(config, 512, true), 8192);
  EXPECT_EQ(batch_rows_for(config, 10000, true), 10000);
  config.d = 4096, config.h = 32, config.e = 128, config.f = 16384;
  EXPECT_EQ(batch_rows_for(config, 512, true), 4096);
  config.experts = 64, config.experts_per_row = 8;
  EXPECT_EQ(batch_rows_for(config, 512, true), 2048);
}

}  // namespace
}  // namespace fidelio
