// This file converts the float types below 16 bits by scalar functions. E2M1 (FP4) has 1 sign, 2 exponent and 1
// mantissa bits and bias 1. E4M3 (FP8) has bias 7 and no infinities, and 0x7f and 0xff are NaN (OCP 8-bit Floating
// Point Specification, revision 1.0).
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace fidelio {

// These are the 16 values of E2M1 by code, where bit 3 is the sign.
inline constexpr std::array<float, 16> kE2m1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
inline constexpr float kE4m3Max = 448.0f;

inline float e4m3_to_float(uint8_t x) {
  const int exponent = (x >> 3) & 15, mantissa = x & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (x & 0x80) ? -magnitude : magnitude;
}

// Rounds to nearest even. Values beyond +-448 saturate, as a quantiser wants the nearest value and not NaN. A NaN stays
// a NaN.
inline uint8_t to_e4m3(float x) {
  if (std::isnan(x)) return 0x7f;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude >= kE4m3Max) return sign | 0x7e;
  // Steps are 2^(e-3) for exponents e >= -6 and 2^-9 below. The value is rounded to a multiple of the step, and then
  // the fields are rebuilt.
  const int exponent = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));  // The range is 0..16.
  // Steps 8..15 are normal numbers of this exponent, 16 carries into the next exponent, and less than 8 is subnormal.
  return static_cast<uint8_t>(sign | (steps + ((exponent + 6) << 3)));
}

// Returns 2^(x - 127), and NaN for 255 (E8M0, OCP Microscaling Formats Specification, revision 1.0).
inline float e8m0_to_float(uint8_t x) {
  return x == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, x - 127);
}
// Returns the value of an E2M1 code with an E8M0 scale. It is exact wherever FP32 holds it, and infinite beyond.
inline float mxfp4_to_float(uint8_t code, uint8_t scale) {
  return scale == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(kE2m1[code], scale - 127);
}

// Returns the nearest E2M1 code. Ties go to the even code, and values beyond +-6 saturate.
inline uint8_t to_e2m1(float x) {
  const uint8_t sign = std::signbit(x) ? 8 : 0;
  const float m = std::fabs(x);
  uint8_t code = 0;
  // These are the midpoints between neighbours. At a tie an odd lower code is skipped, as the code above is even.
  constexpr float kMiddle[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  while (code < 7 && (m > kMiddle[code] || (m == kMiddle[code] && (code & 1)))) ++code;
  return sign | code;
}

}  // namespace fidelio
