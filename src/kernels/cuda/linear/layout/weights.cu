// This file reads packed weights value by value, for embedding rows and for the FP32 products of test oracles.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/split.cuh"
#include "kernels/cuda/linear/dense/exact.h"
#include "kernels/cuda/linear/layout/lowbit_codes.cuh"
#include "kernels/cuda/linear/vectors/vector_codes.cuh"
#include "kernels/cuda/rows/ops.h"

namespace fidelio::cuda {
namespace {

__device__ uint32_t bits_at(uint32_t word, int width, int at) {
  return __funnelshift_r(word, word, at & 31) & ((1u << width) - 1);
}

// Returns the code of (row, column), from where pack_codes (lowbit.cu) put it.
__device__ uint32_t packed_code(const LowbitShape& s, const uint8_t* block, int row, int column) {
  const int tile = row / 16, g = row % 8, upper = row / 8 % 2, c = column / 32, t = column % 32 / 8, h = column % 8 / 4;
  const int r = upper | (column % 4 / 2) << 1, pair = column % 2, lane = 4 * g + t, bits = s.bits;
  const int word4 = (c / 2) * 4 + 2 * (c % 2) + h, nibble = nibble_of(s.kind, r, pair), byte = 16 * pair + 8 * (r / 2),
            odd = r % 2;
  const auto high = [&] {
    return reinterpret_cast<const uint32_t*>(block + tile * 1024 + word4 / 4 * 512 + lane * 16)[word4 % 4];
  };
  const auto low = [&] {
    return reinterpret_cast<const uint32_t*>(block + 8192 + tile * 1024 + word4 / 4 * 512 + lane * 16)[word4 % 4];
  };
  const uint8_t* after4 = block + (has_plane4(bits) ? 8192 : 0);
  const auto two = [&] { return reinterpret_cast<const uint32_t*>(after4 + tile * 512 + lane * 16)[c]; };
  const auto one = [&] {
    return reinterpret_cast<const uint32_t*>(after4 + (has_plane2(bits) ? 4096 : 0) + tile * 256 + lane * 8)[c / 2];
  };
  if (s.kind == CodeKind::grid && bits >= 4) {
    const uint32_t low = bits_at(high(), 1, high_bit_of(r, pair)) << 3 | bits_at(high(), 3, nibble);
    if (bits == 5) return low | bits_at(one(), 1, byte + 4 * (c % 2) + 2 * h + odd) << 4;
    if (bits == 6) return low | bits_at(two(), 2, byte + 2 * (2 * h + odd)) << 4;
    return low;
  }
  switch (bits) {
    case 2:
      return bits_at(two(), 2, nibble + 2 * h);
    case 3:
      return bits_at(two(), 2, nibble + 1 + 2 * h) << 1 | bits_at(one(), 1, nibble + 2 * (c % 2) + h);
    case 4:
      return bits_at(high(), 4, nibble);
    case 5:
      return bits_at(high(), 4, nibble) << 1 | bits_at(one(), 1, byte + 4 * (c % 2) + 2 * h + odd);
    case 6:
      return bits_at(high(), 4, nibble) << 2 | bits_at(two(), 2, byte + 2 * (2 * h + odd));
    case 7:
      return bits_at(high(), 4, nibble) << 3 | bits_at(two(), 2, byte + 2 * (2 * h + odd)) << 1 |
             bits_at(one(), 1, byte + 4 * (c % 2) + 2 * h + odd);
    default:
      return bits_at(high(), 4, nibble) << 4 | bits_at(low(), 4, nibble);
  }
}

__device__ float value_at(const WeightValues& w, int64_t row, int64_t column) {
  if (w.half) return __half2float(reinterpret_cast<const __half*>(w.half)[row * w.in + column]) * w.factor;
  if (w.single) return w.single[row * w.in + column];
  if (w.vectors.codes) return vector_value(w.vectors, row, column);
  const LowbitShape& s = w.lowbit.shape;
  const uint8_t* block =
      w.lowbit.blocks + (row / kBlockRows * s.column_blocks() + column / kBlockColumns) * s.block_bytes();
  const int r = static_cast<int>(row % kBlockRows), c = static_cast<int>(column % kBlockColumns), upper = r / 8 % 2;
  const uint32_t code = packed_code(s, block, r, c);
  const uint8_t* record = block + s.code_bytes() + c / s.group * (s.scale_bytes() + s.zero_bytes());
  const int at = (r / 16 * 8 + r % 8) * 2 + upper;
  const float factor = w.lowbit.row_factor ? w.lowbit.row_factor[row] : 1.0f;
  if (has_entries(s.kind))
    return factor * static_cast<float>(reinterpret_cast<const int8_t*>(record)[at]) *
           static_cast<float>(w.lowbit.grid[code]);
  const float scale =
      s.byte_scale ? static_cast<float>(record[at]) : __half2float(reinterpret_cast<const __half*>(record)[at]);
  const int zero = record[s.scale_bytes() + at] >> code_shift(s.kind, s.bits, upper);
  const int kept = static_cast<int>(code >> s.below << s.below);
  return factor * (scale * (static_cast<float>(kept - zero) + 0.5f * static_cast<float>((1 << s.below) - 1)));
}

__global__ void embed_rows(WeightValues table, const int32_t* ids, float* x) {
  begin_kernel();
  const int64_t row = ids[blockIdx.x];
  for (int64_t c = threadIdx.x; c < table.in; c += blockDim.x) x[blockIdx.x * table.in + c] = value_at(table, row, c);
}

__device__ void raise_to(float* amax, float value) {  // non-negative floats have the same order as their bits
  for (int d = 16; d > 0; d /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, d));
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int*>(amax), __float_as_int(value));
}

__global__ void largest(WeightValues w, float* amax) {
  float most = 0;
  for (int64_t row = blockIdx.x; row < w.out; row += gridDim.x)
    for (int64_t c = threadIdx.x; c < w.in; c += blockDim.x) most = fmaxf(most, fabsf(value_at(w, row, c)));
  raise_to(amax, most);
}

__global__ void convert_bf16(const __nv_bfloat16* from, int64_t n, float inverse, __half* to) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    to[i] = __float2half_rn(__bfloat162float(from[i]) * inverse);
}

__global__ void largest_bf16(const __nv_bfloat16* from, int64_t n, float* amax) {
  float most = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    most = fmaxf(most, fabsf(__bfloat162float(from[i])));
  raise_to(amax, most);
}

// A thread block has 64 outputs by 16 rows, and takes 32 inputs at a time. Weights are decoded into shared memory
// once for all rows.
__global__ void __launch_bounds__(256)
    product_f32(WeightValues w, const float* bias, const float* x, int n, float* y, bool add) {
  __shared__ float values[32][65], inputs[16][33];
  const int64_t row0 = int64_t{blockIdx.x} * 64;
  const int m0 = blockIdx.y * 16, output = threadIdx.x % 64, quarter = threadIdx.x / 64;
  float sum[4] = {};
  for (int64_t c0 = 0; c0 < w.in; c0 += 32) {
    for (int i = threadIdx.x; i < 64 * 32; i += 256) {
      const int64_t row = row0 + i / 32, column = c0 + i % 32;
      values[i % 32][i / 32] = row < w.out && column < w.in ? value_at(w, row, column) : 0.0f;
    }
    for (int i = threadIdx.x; i < 16 * 32; i += 256) {
      const int m = m0 + i / 32;
      const int64_t column = c0 + i % 32;
      inputs[i / 32][i % 32] = m < n && column < w.in ? x[m * w.in + column] : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < 32; ++k)
      for (int i = 0; i < 4; ++i) sum[i] = fmaf(values[k][output], inputs[quarter * 4 + i][k], sum[i]);
    __syncthreads();
  }
  if (row0 + output >= w.out) return;
  for (int i = 0; i < 4; ++i) {
    const int m = m0 + quarter * 4 + i;
    if (m >= n) continue;
    const float value = sum[i] + (bias ? bias[row0 + output] : 0.0f);
    float& to = y[m * w.out + row0 + output];
    to = add ? to + value : value;
  }
}

__global__ void __launch_bounds__(kSplitThreads)
    split_outputs(WeightValues w, int64_t first, uint16_t* high, uint16_t* low, float* factor) {
  const int64_t row = first + blockIdx.x, at = blockIdx.x * w.in;
  split_row([&](int64_t c) { return value_at(w, row, c); }, w.in, high + at, low + at, factor + blockIdx.x);
}

}  // namespace

void split_weight(Stream stream, const WeightValues& w, int64_t first, int64_t count, uint16_t* high, uint16_t* low,
                  float* factor) {
  split_outputs<<<static_cast<unsigned>(count), kSplitThreads, 0, stream>>>(w, first, high, low, factor);
  cuda_check(cudaGetLastError(), "splitting a weight");
}

void embed(Stream stream, const WeightValues& table, const int32_t* ids, int64_t n, float* x) {
  launch("embedding", stream, dim3(static_cast<unsigned>(n)), 256, 0, embed_rows, table, ids, x);
}
void largest_value(Stream stream, const WeightValues& w, float* amax) {
  largest<<<528, 256, 0, stream>>>(w, amax);
  cuda_check(cudaGetLastError(), "reading a weight");
}
void bf16_to_half(Stream stream, const uint16_t* bf16, int64_t n, float factor, uint16_t* halves) {
  convert_bf16<<<1056, 256, 0, stream>>>(reinterpret_cast<const __nv_bfloat16*>(bf16), n, 1 / factor,
                                         reinterpret_cast<__half*>(halves));
  cuda_check(cudaGetLastError(), "converting a weight");
}
void bf16_largest(Stream stream, const uint16_t* bf16, int64_t n, float* amax) {
  largest_bf16<<<1056, 256, 0, stream>>>(reinterpret_cast<const __nv_bfloat16*>(bf16), n, amax);
  cuda_check(cudaGetLastError(), "reading a weight");
}
void linear_f32(Stream stream, const WeightValues& w, const float* bias, const float* x, int64_t n, float* y,
                bool add) {
  const dim3 grid(static_cast<unsigned>((w.out + 63) / 64), static_cast<unsigned>((n + 15) / 16));
  product_f32<<<grid, 256, 0, stream>>>(w, bias, x, static_cast<int>(n), y, add);
  cuda_check(cudaGetLastError(), "an FP32 product");
}

}  // namespace fidelio::cuda
