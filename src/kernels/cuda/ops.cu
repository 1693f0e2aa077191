// Row operations: one thread block a row, sums by a fixed tree.
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/prepare.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 1024;  // where a row is one thread block's work and there may be few rows

constexpr int kKept = 4;  // blocks of a row that a warp of norm_row keeps in registers

// 32 warps a row, warp w blocks w, w + 32, ... of 128 columns.
__global__ void __launch_bounds__(kRowThreads) norm_row(const float* x, const int32_t* rows, const float* weight,
                                                        float eps, int d, float* y, uint8_t* blocks, float* row_scale) {
  begin_kernel();
  const int m = blockIdx.x, warp = threadIdx.x / 32, column_blocks = (d + kBlockColumns - 1) / kBlockColumns;
  const float* from = x + (rows ? rows[m] : m) * int64_t{d};
  const auto column = [&](int i) { return (i * 32 + warp) * kBlockColumns + static_cast<int>(threadIdx.x) % 32 * 4; };
  float4 v[kKept];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    v[i] = load4(from, column(i), d);
    squares += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
  }
  squares = over_block(squares, [](float a, float b) { return a + b; });
  const float scale = 1 / sqrtf(squares / static_cast<float>(d) + eps);
  float amax = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const float4 w = load4(weight, column(i), d);
    v[i] = {v[i].x * scale * w.x, v[i].y * scale * w.y, v[i].z * scale * w.z, v[i].w * scale * w.w};
    amax = fmaxf(amax, largest_of(v[i]));
    const float values[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
    for (int j = 0; j < 4; ++j)
      if (column(i) + j < d) y[m * int64_t{d} + column(i) + j] = values[j];
  }
  if (!blocks) return;
  const float row = scale_of(over_block(amax, Larger()));
  if (threadIdx.x == 0) row_scale[m] = row;
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (i * 32 + warp < column_blocks) prepare_block(v[i], row, m, gridDim.x, i * 32 + warp, column_blocks, blocks);
}

__device__ float silu(float x) { return x / (1 + expf(-x)); }

// Thread block (m, i) makes columns 1024 i .. of row m and leaves their largest magnitude.
__global__ void __launch_bounds__(kThreads)
    gate_up(const float* gate, const float* up, int d, float* y, float* maxima) {
  begin_kernel();
  const int64_t row = blockIdx.x * int64_t{d};
  float amax = 0;
#pragma unroll
  for (int j = 0; j < kSwigluColumns / kThreads; ++j) {
    const int i = blockIdx.y * kSwigluColumns + j * kThreads + threadIdx.x;
    if (i >= d) break;
    const float value = silu(gate[row + i]) * up[row + i];
    y[row + i] = value;
    amax = fmaxf(amax, fabsf(value));
  }
  amax = over_block(amax, Larger());
  if (threadIdx.x == 0) maxima[blockIdx.x * gridDim.y + blockIdx.y] = amax;
}

__global__ void to_halves(const float* x, int64_t columns, __half* halves, float* factor) {
  begin_kernel();
  const float* row = x + blockIdx.x * columns;
  float amax = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) amax = fmaxf(amax, fabsf(row[i]));
  amax = over_block(amax, Larger());
  float scale = 1;
  if (amax > 0 && (amax >= 0x1p15f || amax < 0x1p-6f)) {
    int exponent;
    frexpf(amax, &exponent);
    scale = ldexpf(1.0f, max(exponent, -100) - 15);
  }
  if (threadIdx.x == 0) factor[blockIdx.x] = scale;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads)
    halves[blockIdx.x * columns + i] = __float2half_rn(row[i] / scale);
}

__global__ void finish_row(const float* z, const float* factor, const float* bias, int64_t d, float* y, bool add) {
  begin_kernel();
  const float scale = factor[blockIdx.x];
  if (!add && scale == 1 && !bias && z == y) return;
  for (int64_t i = threadIdx.x; i < d; i += kThreads) {
    const float value = z[blockIdx.x * d + i] * scale + (bias ? bias[i] : 0.0f);
    float& to = y[blockIdx.x * d + i];
    to = add ? to + value : value;
  }
}

}  // namespace

void rms_norm(Stream stream, const float* x, const int32_t* rows, const float* weight, float eps, int64_t n, int64_t d,
              float* y, uint8_t* blocks, float* row_scale) {
  launch("normalising", stream, dim3(static_cast<unsigned>(n)), kRowThreads, 0, norm_row, x, rows, weight, eps,
         static_cast<int>(d), y, blocks, row_scale);
}
void swiglu(Stream stream, const float* gate, const float* up, int64_t n, int64_t d, float* y, float* maxima) {
  launch("swiglu", stream, dim3(static_cast<unsigned>(n), static_cast<unsigned>(swiglu_parts(d))), kThreads, 0, gate_up,
         gate, up, static_cast<int>(d), y, maxima);
}
void prepare_halves(Stream stream, const float* x, int64_t n, int64_t columns, uint16_t* halves, float* factor) {
  launch("rounding activations", stream, dim3(static_cast<unsigned>(n)), kThreads, 0, to_halves, x, columns,
         reinterpret_cast<__half*>(halves), factor);
}
void finish_rows(Stream stream, const float* z, const float* factor, const float* bias, int64_t n, int64_t d, float* y,
                 bool add) {
  launch("finishing a product", stream, dim3(static_cast<unsigned>(n)), kThreads, 0, finish_row, z, factor, bias, d, y,
         add);
}

}  // namespace fidelio::cuda
