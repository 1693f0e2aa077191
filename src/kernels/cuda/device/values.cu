#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/rng.h"
#include "kernels/cuda/device/cuda_error.cuh"
#include "kernels/cuda/device/values_kernels.h"

namespace fidelio::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void widen_all(const uint16_t* from, bool bf16, int64_t n, float* to) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    to[i] = bf16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(from)[i])
                 : __half2float(reinterpret_cast<const __half*>(from)[i]);
}

__global__ void __launch_bounds__(kThreads) energies(const float* values, int64_t n, double* parts) {
  __shared__ double shared[kThreads];
  double sum = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    sum += double{values[i]} * values[i];
  shared[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  if (threadIdx.x == 0) parts[blockIdx.x] = shared[0];
}

// Returns draw `i` of a stream of Rng(seed). The numbers below are made of draws as Rng makes them.
__device__ double draw(const Rng& rng, uint64_t i) {
  const auto c = rng.block(i);
  return static_cast<double>(((uint64_t{c[1]} << 32) | c[0]) >> 11) * 0x1p-53;
}
__global__ void noise_all(float* values, int64_t n, double scale, uint64_t seed, bool uniform) {
  const Rng rng(seed);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const auto at = static_cast<uint64_t>(i);
    const double unit =
        uniform ? 3.4641016151377544 * (draw(rng, at) - 0.5)  // sqrt(12)
                : sqrt(-2.0 * log(1.0 - draw(rng, 2 * at))) * cos(6.283185307179586 * draw(rng, 2 * at + 1));
    values[i] = static_cast<float>(values[i] + scale * unit);
  }
}

}  // namespace

void widen(Stream stream, const uint16_t* from, bool bf16, int64_t n, float* to) {
  widen_all<<<2112, kThreads, 0, stream>>>(from, bf16, n, to);
  cuda_check(cudaGetLastError(), "reading a weight");
}
void energy_parts(Stream stream, const float* values, int64_t n, double* parts) {
  energies<<<kEnergyParts, kThreads, 0, stream>>>(values, n, parts);
  cuda_check(cudaGetLastError(), "measuring a weight");
}
void noise(Stream stream, float* values, int64_t n, double scale, uint64_t seed, bool uniform) {
  noise_all<<<2112, kThreads, 0, stream>>>(values, n, scale, seed, uniform);
  cuda_check(cudaGetLastError(), "adding noise");
}

}  // namespace fidelio::cuda
