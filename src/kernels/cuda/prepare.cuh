// Rows of FP32 activations into the blocks of lowbit.h, for whichever kernel has 128 columns of a row at hand.
#pragma once
#include <cuda_fp16.h>

#include "kernels/cuda/lowbit.h"

namespace fidelio::cuda {

// The sum, or largest, over the thread block; every thread gets it.
template <typename Join>
__device__ float over_block(float value, Join join) {
  __shared__ float of_warp[32];
  for (int d = 16; d > 0; d /= 2) value = join(value, __shfl_xor_sync(~0u, value, d));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float all = of_warp[0];
  for (int i = 1; i < static_cast<int>(blockDim.x) / 32; ++i) all = join(all, of_warp[i]);
  __syncthreads();
  return all;
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

// The power of two that brings amax into [2^14, 2^15).
__device__ inline float scale_of(float amax) {
  int exponent = 15;
  if (amax > 0) frexpf(amax, &exponent), exponent = max(exponent, -100);
  return ldexpf(1.0f, exponent - 15);
}

// A warp's work: block `block` of row m, of which lane l holds columns 4 l .. 4 l + 3. Rows are in chunks of kMaxRows.
__device__ inline void prepare_block(float4 v, int m, int all_rows, int block, int column_blocks, uint8_t* blocks) {
  const int lane = threadIdx.x % 32, chunk = m / kMaxRows, local = m % kMaxRows,
            rows = min(kMaxRows, all_rows - chunk * kMaxRows);
  uint8_t* at = blocks + int64_t{chunk} * column_blocks * input_block_bytes(kMaxRows) + block * input_block_bytes(rows);
  float amax = largest_of(v);
  for (int d = 16; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, d));
  const float scale = scale_of(amax), inverse = 1 / scale;
  const __half2 low = __floats2half2_rn(v.x * inverse, v.y * inverse),
                high = __floats2half2_rn(v.z * inverse, v.w * inverse);
  reinterpret_cast<uint2*>(at + local * 256)[lane ^ (local % 2 * 8)] = {*reinterpret_cast<const uint32_t*>(&low),
                                                                        *reinterpret_cast<const uint32_t*>(&high)};
  const float2 a = __half22float2(low), b = __half22float2(high);
  float sum = ((a.x + a.y) + (b.x + b.y)) * 0x1p-24f;
  float* sums = reinterpret_cast<float*>(at + rows * 256 + local / 8 * kInputSumBytes) + local % 8;
  for (int d = 1; d <= 4; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (lane % 8 == 0) sums[lane / 8 * 8] = sum;  // of 32
  sum += __shfl_xor_sync(~0u, sum, 8);
  if (lane % 16 == 0) sums[(4 + lane / 16) * 8] = sum;  // of 64
  sum += __shfl_xor_sync(~0u, sum, 16);
  if (lane == 0) sums[6 * 8] = sum;  // of 128
  if (lane == 0) sums[kInputScale * 8] = scale;
}

}  // namespace fidelio::cuda
