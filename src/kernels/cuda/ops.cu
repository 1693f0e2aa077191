// Row operations: one thread block a row, sums by a fixed tree.
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/prepare.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 1024;  // where a row is one thread block's work and there may be few rows

__global__ void norm_row(const float* x, const int32_t* rows, const float* weight, float eps, int64_t d, float* y, BlockTarget to) {
  begin_kernel();
  const float* from = x + (rows ? rows[blockIdx.x] : blockIdx.x) * d;
  float* row = y + blockIdx.x * d;
  float squares = 0, amax = 0;
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) squares += from[i] * from[i];
  squares = over_block(squares, [](float a, float b) { return a + b; });
  const float scale = 1 / sqrtf(squares / static_cast<float>(d) + eps);
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
    const float value = from[i] * scale * weight[i];
    row[i] = value;
    amax = fmaxf(amax, fabsf(value));
  }
  if (!to.blocks) return;
  amax = over_block(amax, [](float a, float b) { return fmaxf(a, b); });
  prepare_row(row, amax, blockIdx.x, static_cast<int>(d), to);
}

__device__ float silu(float x) { return x / (1 + expf(-x)); }

__global__ void gate_up(const float* gate, const float* up, int64_t n, float* y) {
  begin_kernel();
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) y[i] = silu(gate[i]) * up[i];
}

__global__ void gate_up_row(const float* gate, const float* up, int64_t d, float* y, BlockTarget to) {
  begin_kernel();
  const int64_t begin = blockIdx.x * d;
  float amax = 0;
  for (int64_t i = begin + threadIdx.x; i < begin + d; i += blockDim.x) {
    const float value = silu(gate[i]) * up[i];
    y[i] = value;
    amax = fmaxf(amax, fabsf(value));
  }
  amax = over_block(amax, [](float a, float b) { return fmaxf(a, b); });
  prepare_row(y + begin, amax, blockIdx.x, static_cast<int>(d), to);
}

__global__ void to_halves(const float* x, int64_t columns, __half* halves, float* factor) {
  begin_kernel();
  const float* row = x + blockIdx.x * columns;
  float amax = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) amax = fmaxf(amax, fabsf(row[i]));
  amax = over_block(amax, [](float a, float b) { return fmaxf(a, b); });
  float scale = 1;
  if (amax > 0 && (amax >= 0x1p15f || amax < 0x1p-6f)) {
    int exponent;
    frexpf(amax, &exponent);
    scale = ldexpf(1.0f, max(exponent, -100) - 15);
  }
  if (threadIdx.x == 0) factor[blockIdx.x] = scale;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) halves[blockIdx.x * columns + i] = __float2half_rn(row[i] / scale);
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

void rms_norm(Stream stream, const float* x, const int32_t* rows, const float* weight, float eps, int64_t n, int64_t d, float* y, uint8_t* blocks,
              float* row_scale) {
  launch("normalising", stream, dim3(static_cast<unsigned>(n)), kRowThreads, 0, norm_row, x, rows, weight, eps, d, y,
         BlockTarget{blocks, row_scale, static_cast<int>(n)});
}
void swiglu(Stream stream, const float* gate, const float* up, int64_t n, int64_t d, float* y, uint8_t* blocks, float* row_scale) {
  if (blocks) {
    launch("swiglu", stream, dim3(static_cast<unsigned>(n)), kRowThreads, 0, gate_up_row, gate, up, d, y, BlockTarget{blocks, row_scale, static_cast<int>(n)});
    return;
  }
  const int64_t thread_blocks = (n * d + kThreads - 1) / kThreads;
  launch("swiglu", stream, dim3(static_cast<unsigned>(thread_blocks < 4096 ? thread_blocks : 4096)), kThreads, 0, gate_up, gate, up, n * d, y);
}
void prepare_halves(Stream stream, const float* x, int64_t n, int64_t columns, uint16_t* halves, float* factor) {
  launch("rounding activations", stream, dim3(static_cast<unsigned>(n)), kThreads, 0, to_halves, x, columns, reinterpret_cast<__half*>(halves), factor);
}
void finish_rows(Stream stream, const float* z, const float* factor, const float* bias, int64_t n, int64_t d, float* y, bool add) {
  launch("finishing a product", stream, dim3(static_cast<unsigned>(n)), kThreads, 0, finish_row, z, factor, bias, d, y, add);
}

}  // namespace fidelio::cuda
