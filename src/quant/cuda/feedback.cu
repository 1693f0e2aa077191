#include "kernels/cuda/device/cuda_error.cuh"
#include "quant/cuda/feedback.h"

namespace fidelio::cuda {

namespace {

constexpr int kThreads = 256, kBlocks = 2112;

__global__ void take_all(const float* values, int64_t n, float* to) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    to[i] -= values[i];
}

__global__ void order_all(const float* d, const int32_t* order, int64_t in, float* ordered) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < in * in; i += int64_t{gridDim.x} * blockDim.x)
    ordered[i] = d[i / in * in + order[i % in]];
}

__global__ void add_all(const float* change, const int32_t* order, int64_t n, int64_t in, float factor, float* values) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    values[i / in * in + order[i % in]] += factor * change[i];
}

}  // namespace

void take_from(Stream stream, const float* values, int64_t n, float* to) {
  take_all<<<kBlocks, kThreads, 0, stream>>>(values, n, to);
  cuda_check(cudaGetLastError(), "subtracting inputs");
}

void order_difference(Stream stream, const float* d, const int32_t* order, int64_t in, float* ordered) {
  order_all<<<kBlocks, kThreads, 0, stream>>>(d, order, in, ordered);
  cuda_check(cudaGetLastError(), "what earlier layers lost");
}

void add_ordered(Stream stream, const float* change, const int32_t* order, int64_t out, int64_t in, float factor,
                 float* values) {
  add_all<<<kBlocks, kThreads, 0, stream>>>(change, order, out * in, in, factor, values);
  cuda_check(cudaGetLastError(), "making up for what earlier layers lost");
}

}  // namespace fidelio::cuda
