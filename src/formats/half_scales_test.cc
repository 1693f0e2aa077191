// These tests check when FP16 scales count as too coarse, by their effect on a matrix that is multiplied by powers of
// two.
#include "formats/half_scales.h"

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

#include "core/rng.h"

namespace fidelio {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 64, kColumns = 256;

std::vector<float> matrix() {
  std::vector<float> w(kRows * kColumns);
  Rng rng(5, 0);
  for (float& x : w) x = 0.05f * (static_cast<float>(rng.uniform()) - 0.5f);
  return w;
}

HalfLoss loss_of(const FormatSpec& spec, const std::vector<float>& w) {
  HalfLoss all;
  for (int64_t r = 0; r < kRows; ++r) all.add(half_loss(spec, std::span(w).subspan(r * kColumns, kColumns)));
  return all;
}

std::vector<float> times(std::vector<float> w, double factor, int64_t rows = kRows) {
  for (int64_t i = 0; i < rows * kColumns; ++i)
    w[static_cast<size_t>(i)] = static_cast<float>(double{w[static_cast<size_t>(i)]} * factor);
  return w;
}

TEST(HalfScales, PowersOfTwoAreHeldAsFarAsFp16Goes) {
  const std::vector<float> w = matrix();
  for (const char* name : {"int8g64", "int4g64z", "int2g128", "int4c", "int8c", "f16", "vq8k16s4", "vq8k16s4m+r2.2"}) {
    const FormatSpec spec = parse_format(name);
    EXPECT_TRUE(has_half_scales(spec)) << name;
    EXPECT_FALSE(loss_of(spec, w).is_harmful()) << name;
    EXPECT_EQ(loss_of(spec, w).lost, 0) << name;
    for (const int power : {-40, -24, 40}) {
      const HalfLoss loss = loss_of(spec, times(w, std::ldexp(1.0, power)));
      EXPECT_TRUE(loss.is_harmful()) << name << " " << power;
      EXPECT_EQ(loss.lost, kRows) << name << " " << power;
      EXPECT_EQ(loss.overflows, power > 0) << name << " " << power;
    }
  }
}

// The widest codes have the smallest scales. 0.05 / 255 is held down to 2^-21, eight powers of two below it.
TEST(HalfScales, TheRangeIsThatOfTheScalesAndNotOfTheWeights) {
  const std::vector<float> w = matrix();
  const auto harmful = [&](const char* format, int power) {
    return loss_of(parse_format(format), times(w, std::ldexp(1.0, power))).is_harmful();
  };
  EXPECT_FALSE(harmful("int8g64", -8));
  EXPECT_TRUE(harmful("int8g64", -10));
  EXPECT_FALSE(harmful("int4g64", -12));
  EXPECT_TRUE(harmful("int4g64", -14));
  EXPECT_FALSE(harmful("int2g64", -14));
  EXPECT_TRUE(harmful("int2g64", -17));
}

TEST(HalfScales, WideScalesHoldEverything) {
  for (const char* name : {"int4g64zs8", "int8g32s8", "lut4g64", "fp4g16z", "fp8", "bf16", "f32"}) {
    const FormatSpec spec = parse_format(name);
    EXPECT_FALSE(has_half_scales(spec)) << name;
    EXPECT_EQ(with_wide_scales(spec), spec) << name;
    EXPECT_EQ(loss_of(spec, times(matrix(), 0x1p-40)).lost, 0) << name;
  }
  for (const auto& [format, wide] : {std::pair("int4g64z", "int4g64zs8"), std::pair("int8c", "int8g128s8"),
                                     std::pair("vq8k16s4", "int2g64s8"), std::pair("f16", "bf16")})
    EXPECT_EQ(to_string(with_wide_scales(parse_format(format))), wide);
}

// Rows of tokens that no text contains are nearly zero in many models. The keys of a head, divided by the factor that
// its queries are multiplied by, are more rows than that.
TEST(HalfScales, FewSmallRowsAreHarmless) {
  const FormatSpec spec = parse_format("int8g64");
  const HalfLoss few = loss_of(spec, times(matrix(), 0x1p-30, kRows / 16));
  EXPECT_EQ(few.lost, kRows / 16);
  EXPECT_FALSE(few.is_harmful());
  EXPECT_TRUE(loss_of(spec, times(matrix(), 0x1p-30, kRows / 4)).is_harmful());
  EXPECT_TRUE(loss_of(spec, times(matrix(), 0x1p30, 1)).is_harmful());
  const HalfLoss zero = loss_of(spec, times(matrix(), 0, kRows / 2));
  EXPECT_EQ(zero.rows, kRows / 2);
  EXPECT_EQ(zero.lost, 0);
  EXPECT_THAT(
      about_half_loss("layers.0.up", spec, few),
      AllOf(HasSubstr("layers.0.up: 4 of its 64 rows want scales as small as"), HasSubstr("int8g64s8 holds them")));
}

}  // namespace
}  // namespace fidelio
