#include <cuda_runtime.h>

#include "eval/cuda/distances.h"
#include "kernels/cuda/device/cuda_error.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 512;

// Reduces a thread block's values to their sum or their largest, in a fixed order. Every thread gets the result.
template <typename T, typename Join>
__device__ T reduce(T value, T* shared, Join join) {
  __syncthreads();
  shared[threadIdx.x] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  __syncthreads();
  return shared[0];
}

// One thread block takes one row: first the largest logits, then the normalisers, then both distances. KL is summed
// as p (e^t - 1 - t) with t = ln(q / p), which is the same number without cancellation between tokens.
__global__ void __launch_bounds__(kThreads)
    distances(const float* p_rows, const float* q_rows, int64_t v, double* found) {
  __shared__ double shared[kThreads];
  const float *p = p_rows + blockIdx.x * v, *q = q_rows + blockIdx.x * v;
  const auto larger = [](double a, double b) { return a > b || a != a ? a : b; };  // keeps a NaN
  const auto plus = [](double a, double b) { return a + b; };
  double most_p = -1e300, most_q = -1e300;
  for (int64_t k = threadIdx.x; k < v; k += kThreads) {
    most_p = larger(p[k], most_p);
    most_q = larger(q[k], most_q);
  }
  most_p = reduce(most_p, shared, larger);
  most_q = reduce(most_q, shared, larger);
  double sum_p = 0, sum_q = 0;
  for (int64_t k = threadIdx.x; k < v; k += kThreads) {
    sum_p += exp(p[k] - most_p);
    sum_q += exp(q[k] - most_q);
  }
  sum_p = reduce(sum_p, shared, plus);
  sum_q = reduce(sum_q, shared, plus);
  const double shift = most_p - most_q + log(sum_p) - log(sum_q);
  double kl = 0, ear = 0;
  for (int64_t k = threadIdx.x; k < v; k += kThreads) {
    const double a = exp(p[k] - most_p) / sum_p, b = exp(q[k] - most_q) / sum_q,
                 t = double{q[k]} - double{p[k]} + shift;
    kl += a * (expm1(t) - t);
    ear += a < b ? a : b;
  }
  kl = reduce(kl, shared, plus);
  ear = reduce(ear, shared, plus);
  if (threadIdx.x > 0) return;
  found[2 * blockIdx.x] = kl;
  found[2 * blockIdx.x + 1] = ear;
}

}  // namespace

void row_distances(Stream stream, const float* p, const float* q, int64_t rows, int64_t v, double* found) {
  distances<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(p, q, v, found);
  cuda_check(cudaGetLastError(), "comparing logits");
}

}  // namespace fidelio::cuda
