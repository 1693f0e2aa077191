// This file has operations on parts of rows: heads, runs of columns, and single numbers.
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/rows/ops.h"

namespace fidelio::cuda {
namespace {

constexpr int kPartThreads = 256, kPartWarps = kPartThreads / 32;

// Thread block (m, i) has the runs 8 i .. 8 i + 7 of row m, one in each warp.
__global__ void __launch_bounds__(kPartThreads)
    norm_runs(const float* x, const float* weight, float eps, int runs, int e, float* y, bool adds) {
  begin_kernel();
  const int run = blockIdx.y * kPartWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (run >= runs) return;
  const int64_t at = (int64_t{blockIdx.x} * runs + run) * e;
  float squares = 0;
  for (int i = lane; i < e; i += 32) squares = fmaf(x[at + i], x[at + i], squares);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) squares += __shfl_xor_sync(~0u, squares, apart);
  const float factor = rsqrtf(squares / static_cast<float>(e) + eps);
  for (int i = lane; i < e; i += 32) {
    const float normed = x[at + i] * factor * weight[i];
    y[at + i] = adds ? y[at + i] + normed : normed;
  }
}

__global__ void __launch_bounds__(kPartThreads)
    columns_of_row(const float* x, int64_t from_columns, int64_t first, int64_t columns, float* y) {
  begin_kernel();
  const int64_t column = int64_t{blockIdx.y} * kPartThreads + threadIdx.x;
  if (column < columns) y[blockIdx.x * columns + column] = x[blockIdx.x * from_columns + first + column];
}

__global__ void __launch_bounds__(kPartThreads) times(const float* factor, int64_t values, float* x) {
  begin_kernel();
  const int64_t i = int64_t{blockIdx.x} * kPartThreads + threadIdx.x;
  if (i < values) x[i] *= *factor;
}

__global__ void __launch_bounds__(kPartThreads) cap_values(float cap, int64_t values, float* x) {
  begin_kernel();
  const int64_t i = int64_t{blockIdx.x} * kPartThreads + threadIdx.x;
  if (i < values) x[i] = cap * tanhf(x[i] / cap);
}

__global__ void __launch_bounds__(kPartThreads) zero(int64_t values, float* x) {
  begin_kernel();
  const int64_t i = int64_t{blockIdx.x} * kPartThreads + threadIdx.x;
  if (i < values) x[i] = 0;
}

unsigned blocks_of(int64_t count, int64_t each) { return static_cast<unsigned>((count + each - 1) / each); }

}  // namespace

void norm_heads(Stream stream, const float* x, const float* weight, float eps, int64_t n, int heads, int e, float* y,
                bool adds) {
  launch("norms of heads", stream, dim3(static_cast<unsigned>(n), blocks_of(heads, kPartWarps)), kPartThreads, 0,
         norm_runs, x, weight, eps, heads, e, y, adds);
}
void columns(Stream stream, const float* x, int64_t n, int64_t from_columns, int64_t first, int64_t count, float* y) {
  launch("columns", stream, dim3(static_cast<unsigned>(n), blocks_of(count, kPartThreads)), kPartThreads, 0,
         columns_of_row, x, from_columns, first, count, y);
}
void scale(Stream stream, const float* factor, int64_t values, float* x) {
  launch("scaling", stream, blocks_of(values, kPartThreads), kPartThreads, 0, times, factor, values, x);
}
void softcap(Stream stream, float cap, int64_t values, float* x) {
  launch("capping logits", stream, blocks_of(values, kPartThreads), kPartThreads, 0, cap_values, cap, values, x);
}
void clear(Stream stream, int64_t values, float* x) {
  launch("clearing", stream, blocks_of(values, kPartThreads), kPartThreads, 0, zero, values, x);
}

}  // namespace fidelio::cuda
