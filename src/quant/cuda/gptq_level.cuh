// This file rounds one value as quant/strip.cc does. It uses the same operations in the same order, none of them
// fused, so that the bits are the same.
#pragma once
#include <cuda_fp16.h>

#include "quant/cuda/gptq_kernels.h"

namespace fidelio::cuda {

struct Chosen {
  int code;
  float level;
};

// Returns the level nearest to y.
__device__ __forceinline__ Chosen nearest_level(const GptqRules& rules, float y) {
  if (rules.grid) {
    int below = 0;
    for (int k = 0; k + 1 < rules.levels; ++k) below += y > rules.middle[k];
    return {below, rules.book[below]};
  }
  constexpr float kRound = 12582912.0f;  // 1.5 2^23: adding and subtracting this rounds to nearest, with ties to even.
  float x = y < 0.0f ? 0.0f : y;
  x = x > rules.highest ? rules.highest : x;
  x = __fsub_rn(__fadd_rn(x, kRound), kRound);
  return {static_cast<int>(x), x};
}

__device__ __forceinline__ float level_of(const GptqRules& rules, int code) {
  return rules.grid ? rules.book[code] : static_cast<float>(code);
}

__device__ __forceinline__ Chosen quantised(const GptqRules& rules, float target, float scale, float offset) {
  return nearest_level(rules, scale == 0 ? 0.0f : __fdiv_rn(__fsub_rn(target, offset), scale));
}

__device__ __forceinline__ float decoded(float scale, float level, float offset) {
  return __fadd_rn(__fmul_rn(scale, level), offset);
}

// Rounds a scale as stored_scale in quant/strip.cc does.
__device__ __forceinline__ float stored_scale(ScaleForm form, float wanted, float row_scale) {
  if (form == ScaleForm::half) {
    if (wanted == 0) return 0.0f;
    return fminf(fmaxf(__half2float(__float2half_rn(wanted)), 0x1p-24f), 65504.0f);
  }
  if (row_scale == 0) return 0.0f;
  const float units = rintf(__fdiv_rn(wanted, row_scale));
  if (form == ScaleForm::byte) return __fmul_rn(row_scale, fminf(fmaxf(units, wanted > 0 ? 1.0f : 0.0f), 255.0f));
  const float rounded = fminf(fmaxf(units, -127.0f), 127.0f);
  return __fmul_rn(row_scale, rounded == 0 && wanted != 0 ? copysignf(1.0f, wanted) : rounded);
}

template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

}  // namespace fidelio::cuda
