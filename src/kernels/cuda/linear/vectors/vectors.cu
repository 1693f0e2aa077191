#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/device/cuda_error.cuh"
#include "kernels/cuda/linear/vectors/vector_codes.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kTile = 4;         // rows of x that share one decoding
constexpr int kRowsABlock = 32;  // rows of W: four a warp, so that filling the codebook is worth it

__device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(~0u, x, by);
  return x;
}

// Products of one vector with kRows rows of x; z: its 8 scaled inputs of the first row, `stride` floats between rows.
template <int kRows>
__device__ __forceinline__ void add_vector(uint2 levels, int signs, const float* z, int64_t stride,
                                           float (&sum)[kRows]) {
  // A signed byte b becomes the float 2^23 + 128 + b, less 2^23 + 128; its sign is turned in the float.
  float w[8];
  const uint32_t biased[2] = {levels.x ^ 0x80808080u, levels.y ^ 0x80808080u};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float level = __uint_as_float(__byte_perm(biased[j / 4], 0x4B000000u, 0x7440 + j % 4)) - 8388736.0f;
    w[j] = __uint_as_float(__float_as_uint(level) ^ (static_cast<uint32_t>(signs) << (31 - j) & 0x80000000u));
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    const float4 low = *reinterpret_cast<const float4*>(z + m * stride),
                 high = *reinterpret_cast<const float4*>(z + m * stride + 4);
    sum[m] = fmaf(w[0], low.x, sum[m]), sum[m] = fmaf(w[1], low.y, sum[m]);
    sum[m] = fmaf(w[2], low.z, sum[m]), sum[m] = fmaf(w[3], low.w, sum[m]);
    sum[m] = fmaf(w[4], high.x, sum[m]), sum[m] = fmaf(w[5], high.y, sum[m]);
    sum[m] = fmaf(w[6], high.z, sum[m]), sum[m] = fmaf(w[7], high.w, sum[m]);
  }
}

template <int kRows>
__device__ __forceinline__ void add_corrections(const VectorWeight& w, int64_t row, const float* x,
                                                float (&sum)[kRows]) {
  for (int i = w.begin[row] + static_cast<int>(threadIdx.x % 32); i < w.begin[row + 1]; i += 32) {
    const auto levels = reinterpret_cast<const uint2*>(w.value)[i];
    const float scale = w.scale[i];
    const int64_t first = int64_t{w.place[i]} * 8;
    for (int64_t j = 0; j < 8 && first + j < w.in; ++j) {
      const float value = scale * entry_of(levels, 0, static_cast<int>(j));
#pragma unroll
      for (int m = 0; m < kRows; ++m) sum[m] = fmaf(value, x[m * w.in + first + j], sum[m]);
    }
  }
}

template <int kSigns, int kRows>
__global__ void __launch_bounds__(kThreads)
    multiply(VectorWeight w, const float* x, const float* scaled, float* y, bool add) {
  extern __shared__ uint2 book[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t stride = w.vectors * 8, last = min(w.out, (blockIdx.x + int64_t{1}) * kRowsABlock);
  int64_t held = -1;
  for (int64_t first = blockIdx.x * int64_t{kRowsABlock}; first < last; first += kWarps) {
    // Rows of a codebook are whole sixteens, so the rows of all warps have one codebook.
    const int64_t block = vector_block(w, first), row = first + warp;
    if (block != held) {
      __syncthreads();
      const auto* from = reinterpret_cast<const uint2*>(w.codebook) + block * w.entries;
      for (int64_t i = threadIdx.x; i < w.entries; i += kThreads) book[i] = from[i];
      __syncthreads();
      held = block;
    }
    if (row >= last) continue;
    float sum[kRows] = {};
    for (int64_t g = 0; g < w.groups; ++g) {
      const int64_t at = (row * w.groups + g) * kVectorLanes + lane;
      const uint32_t index = __ldcs(w.index + at), high = w.high ? __ldcs(w.high + at) : 0u;
      const uint32_t sign = kSigns == 8 ? __ldcs(w.sign8 + at) : kSigns == 4 ? uint32_t{__ldcs(w.sign4 + at)} : 0u;
#pragma unroll
      for (int which = 0; which < 4; ++which) {
        const int64_t v = g * kVectorGroup + which * kVectorLanes + lane;
        if (v >= w.vectors) continue;
        const VectorCodeOf code = code_of<kSigns>(index, high, sign, which);
        add_vector<kRows>(book[code.index], code.signs, scaled + v * 8, stride, sum);
      }
    }
    float corrected[kRows] = {};
    if (w.begin) add_corrections<kRows>(w, row, x, corrected);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const float total = sum_of_lanes(sum[m]), more = w.begin ? sum_of_lanes(corrected[m]) : 0.0f;
      if (lane != 0) continue;
      float value = fmaf(w.row[row], total, more);
      if (w.bias) value += w.bias[row];
      float& to = y[m * w.out + row];
      to = add ? to + value : value;
    }
  }
}

__global__ void scale_rows(VectorWeight w, const float* x, float* scaled) {
  const int64_t m = blockIdx.y, c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c < w.vectors * 8) scaled[m * w.vectors * 8 + c] = c < w.in ? x[m * w.in + c] * w.column[c] : 0.0f;
}

__global__ void dequantise_rows(VectorWeight w, float inverse, __half* halves) {
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, row = blockIdx.y;
  if (c < w.in) halves[row * w.in + c] = __float2half_rn(vector_value(w, row, c) * inverse);
}

template <int kSigns, int kRows>
void launch(Stream stream, const VectorWeight& w, const float* x, const float* scaled, float* y, bool add) {
  const auto bytes = static_cast<size_t>(w.entries * 8);
  const auto blocks = static_cast<unsigned>((w.out + kRowsABlock - 1) / kRowsABlock);
  multiply<kSigns, kRows><<<blocks, kThreads, bytes, stream>>>(w, x, scaled, y, add);
  cuda_check(cudaGetLastError(), "a product of vector codes");
}

template <int kSigns>
void multiply_tile(Stream stream, const VectorWeight& w, const float* x, const float* scaled, int64_t rows, float* y,
                   bool add) {
  switch (rows) {
    case 1:
      return launch<kSigns, 1>(stream, w, x, scaled, y, add);
    case 2:
      return launch<kSigns, 2>(stream, w, x, scaled, y, add);
    case 3:
      return launch<kSigns, 3>(stream, w, x, scaled, y, add);
    default:
      return launch<kSigns, kTile>(stream, w, x, scaled, y, add);
  }
}

}  // namespace

void scale_inputs(Stream stream, const VectorWeight& w, const float* x, int64_t rows, float* scaled) {
  const dim3 grid(static_cast<unsigned>((w.vectors * 8 + 255) / 256), static_cast<unsigned>(rows));
  scale_rows<<<grid, 256, 0, stream>>>(w, x, scaled);
  cuda_check(cudaGetLastError(), "scaling activations");
}

void vector_linear(Stream stream, const VectorWeight& w, const float* x, const float* scaled, int64_t rows, float* y,
                   bool add) {
  for (int64_t m = 0; m < rows; m += kTile) {
    const int64_t count = std::min<int64_t>(kTile, rows - m);
    const float *from = x + m * w.in, *of = scaled + m * w.vectors * 8;
    if (w.signs == 1)
      multiply_tile<1>(stream, w, from, of, count, y + m * w.out, add);
    else if (w.signs == 4)
      multiply_tile<4>(stream, w, from, of, count, y + m * w.out, add);
    else
      multiply_tile<8>(stream, w, from, of, count, y + m * w.out, add);
  }
}

void dequantise_vectors(Stream stream, const VectorWeight& w, float factor, uint16_t* halves) {
  const dim3 grid(static_cast<unsigned>((w.in + 255) / 256), static_cast<unsigned>(w.out));
  dequantise_rows<<<grid, 256, 0, stream>>>(w, 1 / factor, reinterpret_cast<__half*>(halves));
  cuda_check(cudaGetLastError(), "decoding vector codes");
}

}  // namespace fidelio::cuda
