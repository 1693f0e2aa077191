// Row operations: one thread block a row, sums by a fixed tree.
#include <cuda_fp16.h>

#include "kernels/cuda/cuda_error.cuh"
#include "kernels/cuda/ops.h"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256;

// The sum, or largest, over the thread block; every thread gets it.
template <typename Join>
__device__ float over_block(float value, Join join) {
  __shared__ float of_warp[kThreads / 32];
  for (int d = 16; d > 0; d /= 2) value = join(value, __shfl_xor_sync(~0u, value, d));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float all = of_warp[0];
  for (int i = 1; i < kThreads / 32; ++i) all = join(all, of_warp[i]);
  __syncthreads();
  return all;
}

__global__ void norm_row(const float* x, const int32_t* rows, const float* weight, float eps, int64_t d, float* y) {
  const float* from = x + (rows ? rows[blockIdx.x] : blockIdx.x) * d;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < d; i += kThreads) squares += from[i] * from[i];
  squares = over_block(squares, [](float a, float b) { return a + b; });
  const float scale = 1 / sqrtf(squares / static_cast<float>(d) + eps);
  for (int64_t i = threadIdx.x; i < d; i += kThreads) y[blockIdx.x * d + i] = from[i] * scale * weight[i];
}

__global__ void gate_up(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    y[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

__global__ void to_halves(const float* x, int64_t columns, __half* halves, float* factor) {
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
  const float scale = factor[blockIdx.x];
  if (!add && scale == 1 && !bias && z == y) return;
  for (int64_t i = threadIdx.x; i < d; i += kThreads) {
    const float value = z[blockIdx.x * d + i] * scale + (bias ? bias[i] : 0.0f);
    float& to = y[blockIdx.x * d + i];
    to = add ? to + value : value;
  }
}

}  // namespace

void rms_norm(Stream stream, const float* x, const int32_t* rows, const float* weight, float eps, int64_t n, int64_t d, float* y) {
  norm_row<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(x, rows, weight, eps, d, y);
  cuda_check(cudaGetLastError(), "normalising");
}
void swiglu(Stream stream, const float* gate, const float* up, int64_t elements, float* y) {
  const int64_t blocks = (elements + kThreads - 1) / kThreads;
  gate_up<<<static_cast<unsigned>(blocks < 4096 ? blocks : 4096), kThreads, 0, stream>>>(gate, up, elements, y);
  cuda_check(cudaGetLastError(), "swiglu");
}
void prepare_halves(Stream stream, const float* x, int64_t n, int64_t columns, uint16_t* halves, float* factor) {
  to_halves<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(x, columns, reinterpret_cast<__half*>(halves), factor);
  cuda_check(cudaGetLastError(), "rounding activations");
}
void finish_rows(Stream stream, const float* z, const float* factor, const float* bias, int64_t n, int64_t d, float* y, bool add) {
  finish_row<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(z, factor, bias, d, y, add);
  cuda_check(cudaGetLastError(), "finishing a product");
}

}  // namespace fidelio::cuda
