// What the FP4 kernels need beside the frame of lowbit.h: half a span of prepared activations, E4M3 as FP32. Internal
// linkage, once per instruction set, like lowbit_prepare.h.
#pragma once
#include <cstring>

#include "kernels/cpu/linear/lowbit.h"

namespace fidelio::cpu::lowbit {
namespace {

constexpr int kHalf = kSpan / 2;

// Sum of 128 hi + lo (or of the one plane) over the first half of a span; the other half is what is left of the span's
// own sum.
template <bool kTwo>
inline int32_t first_half_sum(const int8_t* x) {
  int32_t sum = 0;
  for (int i = 0; i < kHalf; ++i) sum += kTwo ? 128 * x[i] + x[kSpan + i] : x[i];
  return sum;
}

// An E4M3 is an FP32 whose exponent field is 120 too small once its bits are in place, subnormals included.
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
