#include "kernels/cuda/device/cuda_error.cuh"
#include "quant/cuda/feedback.h"

namespace fidelio::cuda {

namespace {

constexpr int kThreads = 256, kBlocks = 2112;

__global__ void difference_all(const float* c, const float* h, const int32_t* order, int64_t in, float* difference) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < in * in; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t at = i / in * in + order[i % in];
    difference[i] = c[at] - h[at];
  }
}

__global__ void add_all(const float* change, const int32_t* order, int64_t n, int64_t in, float factor, float* values) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    values[i / in * in + order[i % in]] += factor * change[i];
}

}  // namespace

void ordered_difference(Stream stream, const float* c, const float* h, const int32_t* order, int64_t in,
                        float* difference) {
  difference_all<<<kBlocks, kThreads, 0, stream>>>(c, h, order, in, difference);
  cuda_check(cudaGetLastError(), "what earlier layers lost");
}

void add_ordered(Stream stream, const float* change, const int32_t* order, int64_t out, int64_t in, float factor,
                 float* values) {
  add_all<<<kBlocks, kThreads, 0, stream>>>(change, order, out * in, in, factor, values);
  cuda_check(cudaGetLastError(), "making up for what earlier layers lost");
}

}  // namespace fidelio::cuda
