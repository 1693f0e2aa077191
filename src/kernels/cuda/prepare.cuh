// A row of FP32 activations into the blocks of lowbit.h, by one thread block.
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

// Chunk of kMaxRows rows that row m belongs to: where it is, how many rows it has, which of them m is.
struct BlockTarget {
  uint8_t* blocks = nullptr;  // of the batch, chunk after chunk; null: not wanted
  float* row_scale = nullptr;
  int rows = 0;               // of the batch
};

// `row` (columns) was written by this thread block before a __syncthreads, or by a kernel before; amax is its largest magnitude.
__device__ inline void prepare_row(const float* row, float amax, int m, int columns, const BlockTarget& to) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int column_blocks = (columns + kBlockColumns - 1) / kBlockColumns, chunk = m / kMaxRows, local = m % kMaxRows;
  const int rows = min(kMaxRows, to.rows - chunk * kMaxRows);
  int exponent = 15;
  if (amax > 0) frexpf(amax, &exponent), exponent = max(exponent, -100);  // amax in [2^(exponent - 1), 2^exponent)
  const float inverse = ldexpf(1.0f, 15 - exponent);
  if (threadIdx.x == 0) to.row_scale[m] = ldexpf(1.0f, exponent - 15);
  uint8_t* blocks = to.blocks + int64_t{chunk} * column_blocks * input_block_bytes(kMaxRows);
  const int64_t block_bytes = input_block_bytes(rows);
  for (int block = warp; block < column_blocks; block += warps) {
    uint8_t* at = blocks + block * block_bytes;
    float* sums = reinterpret_cast<float*>(at + rows * 256 + local / 8 * kInputSumBytes) + local % 8;
    float chunk_sum[4];
    for (int c = 0; c < 4; ++c) {
      const int column = block * kBlockColumns + c * 32 + lane;
      const __half value = __float2half_rn(column < columns ? row[column] * inverse : 0.0f);
      float sum = __half2float(value);
      for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
      chunk_sum[c] = sum * 0x1p-24f;
      reinterpret_cast<__half*>(at + local * 256)[c * 32 + lane] = value;
    }
    if (lane == 0) {
      for (int c = 0; c < 4; ++c) sums[c * 8] = chunk_sum[c];
      sums[4 * 8] = chunk_sum[0] + chunk_sum[1];
      sums[5 * 8] = chunk_sum[2] + chunk_sum[3];
      sums[6 * 8] = (chunk_sum[0] + chunk_sum[1]) + (chunk_sum[2] + chunk_sum[3]);
    }
  }
}

}  // namespace fidelio::cuda
