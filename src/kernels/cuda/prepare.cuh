// Rows of FP32 activations into the blocks of lowbit.h, for whichever kernel has 128 columns of a row at hand.
#pragma once
#include <cuda_fp16.h>

#include "kernels/cuda/lowbit.h"

namespace fidelio::cuda {

// The sum, or largest, over a thread block of whole warps, by a tree; every thread gets it.
template <typename Join>
__device__ float over_block(float value, Join join) {
  __shared__ float of_warp[32];
  const int warps = static_cast<int>(blockDim.x) / 32;  // a power of two
  for (int d = 16; d > 0; d /= 2) value = join(value, __shfl_xor_sync(~0u, value, d));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[static_cast<int>(threadIdx.x) % warps];
  for (int d = warps / 2; d > 0; d /= 2) value = join(value, __shfl_xor_sync(~0u, value, d));
  __syncthreads();
  return value;
}
struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

__device__ inline float largest_of(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

// Four columns of a row; beyond the last column zeros.
__device__ inline float4 load4(const float* row, int column, int columns) {
  if (columns % 4 == 0) return column < columns ? *reinterpret_cast<const float4*>(row + column) : float4{0, 0, 0, 0};
  const auto at = [&](int i) { return column + i < columns ? row[column + i] : 0.0f; };
  return {at(0), at(1), at(2), at(3)};
}

__device__ inline void store4(float* row, int column, int columns, float4 v) {
  if (columns % 4 == 0 && column < columns) {
    *reinterpret_cast<float4*>(row + column) = v;
    return;
  }
  const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (column + i < columns) row[column + i] = values[i];
}

// The power of two that brings amax into [2^14, 2^15), or 1 where FP16 is as good without: from 2^-13 on half an ulp of
// amax is at least 2^-25, the most that a subnormal half is wrong by.
__device__ inline float scale_of(float amax) {
  if (amax == 0 || (amax >= 0x1p-13f && amax < 0x1p15f)) return 1;
  int exponent;
  frexpf(amax, &exponent);
  return ldexpf(1.0f, max(exponent, -100) - 15);
}

// A warp's work: block `block` of row m, of which lane l holds columns 4 l .. 4 l + 3. Rows are in chunks of kMaxRows.
__device__ inline void prepare_block(float4 v, int m, int all_rows, int block, int column_blocks, uint8_t* blocks) {
  const int lane = threadIdx.x % 32, chunk = m / kMaxRows, local = m % kMaxRows,
            rows = static_cast<int>(input_rows(min(kMaxRows, all_rows - chunk * kMaxRows)));
  uint8_t* first = blocks + chunk * input_bytes(kMaxRows, column_blocks);
  uint8_t* at = first + block * input_block_bytes(rows);
  float amax = largest_of(v);
  for (int d = 16; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, d));
  const float scale = scale_of(amax), inverse = 1 / scale;
  const __half2 low = __floats2half2_rn(v.x * inverse, v.y * inverse),
                high = __floats2half2_rn(v.z * inverse, v.w * inverse);
  const uint2 halves = {*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
  reinterpret_cast<uint2*>(at + local * 256)[lane] = halves;
  if (rows > 16) {  // lane 2 t + h of a chunk's eight
    uint8_t* turned = at + rows * 256 + ((lane / 8 * 4 + lane % 2 * 2) * rows + local) * 16 + lane % 8 / 2 * 4;
    *reinterpret_cast<uint32_t*>(turned) = halves.x;
    *reinterpret_cast<uint32_t*>(turned + rows * 16) = halves.y;
  }
  const float2 a = __half22float2(low), b = __half22float2(high);
  float sum = ((a.x + a.y) + (b.x + b.y)) * 0x1p-24f;
  float* sums = reinterpret_cast<float*>(at + input_halves_bytes(rows) + local / 8 * kInputSumBytes) + local % 8;
  float* kept = reinterpret_cast<float*>(first + column_blocks * input_block_bytes(rows) +
                                         (int64_t{block} * (rows / 8) + local / 8) * kInputSumBytes) +
                local % 8;
  const auto put = [&](int i, float value) {
    sums[i * 8] = scale == 1 ? value : NAN;
    if (scale != 1) kept[i * 8] = value;
  };
  for (int d = 1; d <= 4; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (lane % 8 == 0) put(lane / 8, sum);  // of 32
  sum += __shfl_xor_sync(~0u, sum, 8);
  if (lane % 16 == 0) put(4 + lane / 16, sum);  // of 64
  sum += __shfl_xor_sync(~0u, sum, 16);
  if (lane == 0) put(6, sum);  // of 128
  if (lane == 0) sums[kInputScale * 8] = scale;
}

}  // namespace fidelio::cuda
