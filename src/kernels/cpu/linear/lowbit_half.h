// This file has what the FP4 kernels need beyond lowbit.h: sums of half a span of prepared activations, and E4M3 as
// FP32. It is included once per instruction set with internal linkage, like lowbit_prepare.h.
#pragma once
#include <cstring>

#include "kernels/cpu/linear/lowbit.h"

namespace fidelio::cpu::lowbit {
namespace {

constexpr int kHalf = kSpan / 2;

// Returns the sum of 128 hi + lo (or of the one plane) over the first half of a span. The sum of the other half is
// the remainder of the span's own sum.
template <bool kTwo>
inline int32_t first_half_sum(const int8_t* x) {
  int32_t sum = 0;
  for (int i = 0; i < kHalf; ++i) sum += kTwo ? 128 * x[i] + x[kSpan + i] : x[i];
  return sum;
}

// Returns the value of an E4M3 code. Placed at the top of an FP32's fields it has an exponent that is 120 too small;
// one multiplication corrects that, also for subnormals.
inline float from_e4m3(uint8_t code) {
  uint32_t u = (code & 0x7fu) << 20;
  if ((code & 0x7f) == 0x7f) u = 0x7fc00000u;
  u |= (code & 0x80u) << 24;
  float value;
  std::memcpy(&value, &u, 4);
  return value * 0x1p120f;
}

}  // namespace
}  // namespace fidelio::cpu::lowbit
