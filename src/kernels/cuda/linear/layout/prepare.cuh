// This file turns rows of FP32 activations into the blocks of lowbit.h, for any kernel that has 128 columns of a row
// at hand.
#pragma once
#include <cuda_fp16.h>

#include "kernels/cuda/linear/layout/lowbit.h"

namespace fidelio::cuda {

// Returns the sum, or the largest, over a thread block of whole warps, by a tree. Every thread gets it.
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

// Returns the largest magnitude. A NaN counts as the largest.
__device__ inline float largest_of(float4 v) {
  const auto bits = [](float x) { return __float_as_uint(fabsf(x)); };
  return __uint_as_float(max(max(bits(v.x), bits(v.y)), max(bits(v.z), bits(v.w))));
}

// Loads four columns of a row, with zeros beyond the last column.
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

// Returns the power of two that brings amax into [2^14, 2^15), or 1 if FP16 is as good without it. From 2^-13 on,
// half an ulp of amax is at least 2^-25, which is the largest error of a subnormal half.
__device__ inline float scale_of(float amax) {
  if (amax == 0 || (amax >= 0x1p-13f && amax < 0x1p15f)) return 1;
  int exponent;
  frexpf(amax, &exponent);
  return ldexpf(1.0f, max(exponent, -100) - 15);
}
// Returns the inverse of a normal power of two, whose inverse is normal too, exactly and without a division.
__device__ inline float inverse_of(float scale) { return __uint_as_float((254u << 23) - __float_as_uint(scale)); }

// Returns the smallest power of two that divides amax to at most 127 * 257. Both bytes of every integer then fit a
// signed byte. It works with amax's exponent, and returns at least 2^-115.
__device__ inline float integer_scale_of(float amax) {
  const uint32_t exponent = max(__float_as_uint(amax) >> 23, 26u);  // with 2^127 for 1
  const float scale = __uint_as_float((exponent - 14) << 23);
  return amax == 0 ? 1 : amax > scale * 32639.0f ? 2 * scale : scale;
}

// Returns the factor of a whole row of halves, which is 1 unless the row leaves FP16's comfortable range.
__device__ inline float row_factor_of(float amax) {
  if (amax == 0 || (amax >= 0x1p-6f && amax < 0x1p15f)) return 1;
  int exponent;
  frexpf(amax, &exponent);
  return ldexpf(1.0f, max(exponent, -100) - 15);
}

__device__ inline float silu(float x) { return __fdividef(x, 1 + expf(-x)); }
__device__ inline float4 gated(float4 gate, float4 up) {
  return {silu(gate.x) * up.x, silu(gate.y) * up.y, silu(gate.z) * up.z, silu(gate.w) * up.w};
}

__device__ inline float4 operator*(float4 a, float4 b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
__device__ inline float4 operator*(float4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }

// InputPlaces says where a row's integers of a block go (lowbit.h).
struct InputPlaces {
  uint8_t* rows;
  int room, row;
  bool panel;

  __device__ uint32_t* bytes(int plane, int c, int t, int h) const {
    return reinterpret_cast<uint32_t*>(
        rows + (panel ? row / 8 * 2048 + plane * 1024 + c * 256 + h * 128 + row % 8 * 16 + t * 4
                      : row * kInputRow + c / 2 * 128 + plane * 64 + t * 16 + c % 2 * 8 + h * 4));
  }
  __device__ int* record(int i) const {
    return reinterpret_cast<int*>(
        rows + (panel ? room * kInputPlanes + ((7 - i) * room + row) * 4 : row * kInputRow + kInputPlanes + i * 4));
  }
};

// A RowBlock is a block of a row. Lane l of a warp holds columns 4 l .. 4 l + 3 and the largest magnitude of all 128.
// Magnitudes have the same order as their bits, and NaN comes last.
struct RowBlock {
  float4 v;
  float amax;
  __device__ RowBlock(float4 v) : v(v) {
    amax = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest_of(v))));
  }
};

// Rounds columns `column` .. `column` + 3 of a row, of which a warp has 128, as a coarse mode does. It uses as few
// instructions as possible, because in a decode step every kernel fetches them again. Magnitudes are compared as bit
// patterns, so that NaN counts above everything and reaches the scale.
struct WholeNumbers {
  float4 v;
  float scale;
};
__device__ inline WholeNumbers whole_numbers(float4 v, int column, const Rounding& how) {
  constexpr float kTiny = 1e-30f;  // below this a group counts as zero, because the inverse would overflow
  // A sum with this has no bits below 1; they are rounded away, with ties to even.
  constexpr float kToInteger = 0x3p22f;
  const int lane = threadIdx.x % 32;
  const uint32_t group = ~0u >> (32 - how.lanes) << (lane & -how.lanes);
  const float largest = __uint_as_float(__reduce_max_sync(group, __float_as_uint(largest_of(v))));
  const bool zero = largest < kTiny;
  const float scale = zero ? 0.0f : largest * (column >= how.fine_from ? 1.0f / 127 : how.part);
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale));
  if (zero) inverse = 0;
  const auto of = [&](float x) { return fmaf(x, inverse, kToInteger) - kToInteger; };
  return {{of(v.x), of(v.y), of(v.z), of(v.w)}, scale};
}
__device__ inline float4 rounded(float4 v, int column, const Rounding& how) {
  const WholeNumbers whole = whole_numbers(v, column, how);
  return whole.v * whole.scale;
}

// Returns a warp's block of a row as the weights see it.
__device__ inline float4 as_seen(float4 v, int block, const Rounding& how) {
  return how.lanes > 0 ? rounded(v, block * kBlockColumns + static_cast<int>(threadIdx.x) % 32 * 4, how) : v;
}

// Prepares a block as integers, which stand for it times `factor`. This is the work of a warp.
__device__ inline void prepare_integers(const RowBlock& block, float factor, const InputPlaces& to) {
  const int lane = threadIdx.x % 32;
  const float4 v = block.v;
  const float scale = integer_scale_of(block.amax), inverse = inverse_of(scale);
  const int x0 = __float2int_rn(v.x * inverse), x1 = __float2int_rn(v.y * inverse), x2 = __float2int_rn(v.z * inverse),
            x3 = __float2int_rn(v.w * inverse);
  const auto bytes = [](int a, int b, int c, int d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
  };
  const uint32_t planes[2] = {bytes((x0 + 128) >> 8, (x2 + 128) >> 8, (x1 + 128) >> 8, (x3 + 128) >> 8),
                              bytes(x0, x2, x1, x3)};
  const int c = lane / 8, t = lane % 8 / 2, h = lane % 2;
#pragma unroll
  for (int plane = 0; plane < 2; ++plane) *to.bytes(plane, c, t, h) = planes[plane];
  int sum = (x0 + x1) + (x2 + x3);
  for (int d = 1; d <= 4; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (lane % 8 == 0) *to.record(lane / 8) = sum;  // the sum of 32
  sum += __shfl_xor_sync(~0u, sum, 8);
  if (lane % 16 == 0) *to.record(4 + lane / 16) = sum;  // the sum of 64
  sum += __shfl_xor_sync(~0u, sum, 16);
  if (lane == 0) *to.record(6) = sum;  // the sum of 128
  if (lane == 0) *to.record(7) = __float_as_int(block.amax < INFINITY ? scale * factor : NAN);
}

// Writes block `block` of row m, which is `row`, as integers `unscaled` times `factor`. This is the work of a warp.
// Rows are in chunks of kMaxRows.
__device__ inline void put_block(const RowBlock& row, const RowBlock& unscaled, float factor, int m, int all_rows,
                                 int block, int column_blocks, uint8_t* blocks) {
  const int lane = threadIdx.x % 32, chunk = m / kMaxRows, local = m % kMaxRows,
            rows = static_cast<int>(input_rows(all_rows));
  uint8_t* at = blocks + chunk * input_bytes(kMaxRows, column_blocks) + block * input_block_bytes(rows);
  const float4 v = row.v;
  const float half_scale = scale_of(row.amax), to_half = inverse_of(half_scale);
  const __half2 low = __floats2half2_rn(v.x * to_half, v.y * to_half),
                high = __floats2half2_rn(v.z * to_half, v.w * to_half);
  reinterpret_cast<uint2*>(at + local * kInputHalves)[lane] = {*reinterpret_cast<const uint32_t*>(&low),
                                                               *reinterpret_cast<const uint32_t*>(&high)};
  if (lane == 0) reinterpret_cast<float*>(at + half_scales_at(rows))[local] = half_scale;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const bool panel = rows > 8;
#else
  constexpr bool panel = false;
#endif
  prepare_integers(unscaled, factor, {at + rows_at(rows), rows, local, panel});
}
// These do the same for what the weights see: for a norm's row, which is `factor` times `unscaled`, or for `v`.
__device__ inline void prepare_block(float4 unscaled, float factor, int m, int all_rows, int block, int column_blocks,
                                     const PreparedRows& to) {
  unscaled = as_seen(unscaled, block, to.rounding);
  put_block(unscaled * factor, unscaled, factor, m, all_rows, block, column_blocks, to.blocks);
}
__device__ inline void prepare_block(float4 v, int m, int all_rows, int block, int column_blocks,
                                     const PreparedRows& to) {
  const RowBlock row(as_seen(v, block, to.rounding));
  put_block(row, row, 1, m, all_rows, block, column_blocks, to.blocks);
}

// ---- Norms. A row's squares are summed in blocks of 128, one by each warp, and then those sums are added.
__device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(~0u, v, apart);
  return v;
}
__device__ __forceinline__ float squares_of_block(float4 v) {
  return sum_of_warp(fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, __fmul_rn(v.w, v.w)))));
}
// Computes the same sum if half a warp has a block, with columns 8 l .. 8 l + 7 in each lane.
__device__ __forceinline__ float squares_of_half(float4 a, float4 b) {
  const auto of = [](float4 v) { return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, __fmul_rn(v.w, v.w)))); };
  float even = of(a), odd = of(b);
#pragma unroll
  for (int apart = 8; apart > 0; apart /= 2)
    even += __shfl_xor_sync(~0u, even, apart), odd += __shfl_xor_sync(~0u, odd, apart);
  return even + odd;
}
// Returns a lane's share of a row's squares, which sum_of_warp() adds up. norm_factor() then returns what the row is
// multiplied by.
__device__ __forceinline__ float share_of_squares(const float* of_blocks, int blocks) {
  float sum = 0;
  for (int i = threadIdx.x % 32; i < blocks; i += 32) sum += of_blocks[i];
  return sum;
}
__device__ __forceinline__ float norm_factor(float squares, int columns, float eps) {
  return rsqrtf(fmaf(squares, 1 / static_cast<float>(columns), eps));
}

}  // namespace fidelio::cuda
