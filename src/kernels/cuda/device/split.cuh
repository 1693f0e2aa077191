// This file splits a row of values into two FP16 halves with a power of two as factor (exact.h), using one thread
// block.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

namespace fidelio::cuda {

constexpr int kSplitThreads = 256;

// value(c) returns column c.
template <typename Value>
__device__ void split_row(const Value& value, int64_t columns, uint16_t* high, uint16_t* low, float* factor) {
  __shared__ float largest[kSplitThreads];
  float most = 0;
  for (int64_t c = threadIdx.x; c < columns; c += kSplitThreads) most = fmaxf(most, fabsf(value(c)));
  largest[threadIdx.x] = most;
  for (int half = kSplitThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) largest[threadIdx.x] = fmaxf(largest[threadIdx.x], largest[threadIdx.x + half]);
  }
  __syncthreads();
  most = largest[0];
  int exponent = 0;
  if (most > 0 && isfinite(most)) frexpf(most, &exponent);
  exponent = max(exponent, -100) - 15;
  const float up = ldexpf(1.0f, -exponent);
  for (int64_t c = threadIdx.x; c < columns; c += kSplitThreads) {
    const float x = value(c) * up;
    const __half h = __float2half_rn(x);
    reinterpret_cast<__half*>(high)[c] = h;
    reinterpret_cast<__half*>(low)[c] = __float2half_rn(x - __half2float(h));
  }
  if (threadIdx.x == 0) *factor = ldexpf(1.0f, exponent);
}

}  // namespace fidelio::cuda
