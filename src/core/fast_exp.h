// This file computes exp in FP32 on vectors of four, which every 64-bit CPU has. GCC and Clang both fail to vectorise
// the same loop over scalars without -ffast-math.
//
// The method uses no table and no branch. It writes x = n ln 2 + r with |r| <= ln 2 / 2, where ln 2 is given in two
// parts, of which the first is short enough that n times it is exact. Then e^r = 1 + r + r^2 P(r) by the Taylor series
// to r^7, whose remainder r^8 / 8! is below 5.2e-9. With the rounding of the last additions and of the scaling the
// relative error stays below 2e-7, which is tested over the whole range.
#pragma once
#include <cstdint>
#include <cstring>

namespace fidelio {

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
using Double4 = double __attribute__((vector_size(32)));

inline Float4 load4(const float* x) {
  Float4 v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
inline void store4(float* x, Float4 v) { std::memcpy(x, &v, sizeof v); }
inline Float4 splat4(float x) { return Float4{x, x, x, x}; }

struct ReducedExp {
  Float4 scale;    // This is 2^n.
  Float4 r;        // This is the remainder r.
  Float4 squares;  // This is r^2 P(r) = e^r - 1 - r.
};

// x is clamped to [-87, 87], where 2^n is a normal number.
inline ReducedExp reduce_exp(Float4 x) {
  constexpr float kLimit = 87, kLog2E = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // This is 1.5 * 2^23; adding it leaves the nearest integer in the low bits.
  x = x < -kLimit ? splat4(-kLimit) : x;
  x = x > kLimit ? splat4(kLimit) : x;
  const Float4 shifted = x * kLog2E + kRound, n = shifted - kRound;
  const Float4 r = (x - n * kLn2High) - n * kLn2Low;
  Int4 bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000;
  Float4 scale;
  std::memcpy(&scale, &bits, sizeof scale);
  const Float4 p = 0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720 + r * (1.0f / 5040)))));
  return {scale, r, r * r * p};
}

inline Float4 fast_exp(Float4 x) {
  const ReducedExp e = reduce_exp(x);
  return e.scale * (1.0f + (e.r + e.squares));
}

// Returns e^x - 1 - x for x <= 87. The result is never negative and has a small relative error also near 0, where n = 0
// and the bracket vanishes exactly.
inline Float4 exp_minus_1_minus_x(Float4 x) {
  const ReducedExp e = reduce_exp(x);
  return e.scale * e.squares + ((e.scale - 1.0f) + (e.scale * e.r - x));
}

}  // namespace fidelio
