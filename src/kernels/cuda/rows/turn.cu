// This file multiplies rows by Hadamard matrices (core/hadamard.h): first sums and differences in shared memory, then
// the dense factor.
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/rows/ops.h"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256;

// Thread block (m, i) transforms block i of row m, which has core * part columns. The terms of an output are added in
// one fixed order.
__global__ void __launch_bounds__(kThreads)
    turn_row(float* x, const float* signs, int stride, int part, int core, float scale) {
  extern __shared__ float values[];
  begin_kernel();
  const int block = core * part;
  float* row = x + (int64_t{blockIdx.x} * gridDim.y + blockIdx.y) * block;
  for (int i = threadIdx.x; i < block; i += kThreads) values[i] = row[i];
  for (int half = stride; half < part; half *= 2) {
    __syncthreads();
    for (int pair = threadIdx.x; pair < block / 2; pair += kThreads) {
      const int i = pair / half * 2 * half + pair % half;
      const float a = values[i], b = values[i + half];
      values[i] = a + b;
      values[i + half] = a - b;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < block; i += kThreads) {
    float sum = core == 1 ? values[i] : 0;
    if (core > 1)
      for (int j = 0; j < core; ++j) sum = fmaf(signs[i / part * core + j], values[j * part + i % part], sum);
    row[i] = sum * scale;
  }
}

}  // namespace

void turn_rows(Stream stream, const RowTurn& how, const float* signs, int64_t n, float* x) {
  const int64_t block = how.core * how.part, shared = block * int64_t{sizeof(float)};
  static const cudaError_t allowed =
      cudaFuncSetAttribute(turn_row, cudaFuncAttributeMaxDynamicSharedMemorySize, kWidestTurn * sizeof(float));
  if (shared > 48 << 10) cuda_check(allowed, "asking for shared memory to turn rows");
  launch("turning rows", stream, dim3(static_cast<unsigned>(n), static_cast<unsigned>(how.columns / block)), kThreads,
         static_cast<size_t>(shared), turn_row, x, signs, static_cast<int>(how.stride), static_cast<int>(how.part),
         static_cast<int>(how.core), how.scale);
}

}  // namespace fidelio::cuda
