// This file rounds values to what formats store, as functions of one value that can be compiled for a GPU too.
#pragma once
#include <bit>
#include <cstdint>

#include "train/codes.h"

namespace fidelio::train {

// Returns the nearest whole number, with ties to even, for |x| below 2^22. Adding 1.5 2^23 leaves no bits for a
// fraction.
constexpr float nearest(float x) {
  constexpr float kRound = 12582912.0f;
  return (x + kRound) - kRound;
}
constexpr float within(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// Returns the nearest multiple of 2^(e - mantissa bits) for x = 1.m 2^e, never finer than `finest`. It serves FP16
// and E4M3.
constexpr float short_float(float x, int mantissa_bits, float finest, float largest) {
  const float magnitude = x < 0 ? -x : x;
  if (magnitude >= largest) return x < 0 ? -largest : largest;
  const uint32_t exponent = (std::bit_cast<uint32_t>(magnitude) >> 23) & 255u,
                 down = static_cast<uint32_t>(mantissa_bits);
  float step = exponent > down ? std::bit_cast<float>((exponent - down) << 23) : finest;
  if (step < finest) step = finest;
  const float rounded = nearest(magnitude / step) * step;
  return x < 0 ? -rounded : rounded;
}
constexpr float round_f16(float x) { return short_float(x, 10, 0x1p-24f, 65504.0f); }
constexpr float round_e4m3(float x) { return short_float(x, 3, 0x1p-9f, 448.0f); }
constexpr float round_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}

// Returns the stored multiple of the row's scale (or the scale itself) that a latent t stands for.
constexpr float stored_multiple(ScaleRule rule, float t) {
  switch (rule) {
    case ScaleRule::f16:
      return round_f16(t);
    case ScaleRule::u8:
      return nearest(within(t, 0, 255));
    case ScaleRule::i8:
      return nearest(within(t, -127, 127));
    case ScaleRule::e4m3:
      return round_e4m3(t);
    case ScaleRule::row:
      return 1;
  }
  return 1;
}

// Returns the code of a position with a zero point, out of `levels` codes.
constexpr int code_of(float position, float shift, int levels) {
  return static_cast<int>(nearest(within(position + shift, 0, static_cast<float>(levels - 1))));
}
// Returns true if the position is more than half a cell beyond the ends of the range.
constexpr bool is_clamped(float position, float shift, int levels) {
  const float q = position + shift;
  return q < -0.5f || q > static_cast<float>(levels) - 0.5f;
}
// Turns levels that a step has moved into a codebook that may be stored: signed bytes in strictly ascending order.
template <typename Real>
constexpr void keep_ascending(const Real* grid, int levels, Real* level) {
  for (int k = 0; k < levels; ++k) {
    const float x = nearest(within(static_cast<float>(grid[k]), -127, 127));
    const float low = k > 0 ? static_cast<float>(level[k - 1]) + 1 : x;
    level[k] = static_cast<Real>(x > low ? x : low);
  }
  for (int k = levels; k-- > 0;) {
    const float most = static_cast<float>(128 - levels + k);
    if (static_cast<float>(level[k]) > most) level[k] = static_cast<Real>(most);
  }
}

// Returns the mean distance of the levels around code q. A step of the latent moves the value by so much.
template <typename Real>
constexpr Real slope_of(const Real* level, int q, int levels) {
  const int below = q > 0 ? q - 1 : q, above = q + 1 < levels ? q + 1 : q;
  return (level[above] - level[below]) / static_cast<Real>(above - below);
}

}  // namespace fidelio::train
