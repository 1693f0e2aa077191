#include <cuda_runtime.h>

#include <climits>
#include <cmath>

#include "eval/cuda/distances.h"
#include "kernels/cuda/device/cuda_error.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 1024;  // few rows are compared at once, and each is one thread block

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

// A Best is a token and its logit. Of equal logits the lower id comes first.
struct Best {
  float logit;
  int32_t id;
};
__device__ bool comes_before(Best a, Best b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

// Finds the first token of a row among those that come after `last`.
__device__ Best best_after(const float* row, int64_t v, const Best* last, Best* shared) {
  const auto first = [](Best a, Best b) { return comes_before(b, a) ? b : a; };
  Best best{-INFINITY, INT_MAX};
  for (int64_t k = threadIdx.x; k < v; k += kThreads) {
    const Best here{row[k], static_cast<int32_t>(k)};
    if (last == nullptr || comes_before(*last, here)) best = first(best, here);
  }
  return reduce(best, shared, first);
}

__device__ float logit_at(const float* row, int64_t v, int32_t id) { return id < v ? row[id] : NAN; }

// One thread block takes one row, as above, and then passes over p once for each of its most likely tokens.
__global__ void __launch_bounds__(kThreads) figures(const float* p_rows, const float* q_rows, const int32_t* tokens,
                                                    int64_t v, int count, RowFigures* found, TopLogits* top) {
  __shared__ double shared[kThreads];
  __shared__ Best bests[kThreads];
  const float *p = p_rows + blockIdx.x * v, *q = q_rows + blockIdx.x * v;
  const auto plus = [](double a, double b) { return a + b; };
  const Best best_p = best_after(p, v, nullptr, bests), best_q = best_after(q, v, nullptr, bests);
  RowFigures row;
  row.most_p = best_p.logit, row.most_q = best_q.logit;
  for (int64_t k = threadIdx.x; k < v; k += kThreads) {
    row.sum_p += exp(p[k] - row.most_p);
    row.sum_q += exp(q[k] - row.most_q);
  }
  row.sum_p = reduce(row.sum_p, shared, plus);
  row.sum_q = reduce(row.sum_q, shared, plus);
  const double shift = row.most_p - row.most_q + log(row.sum_p) - log(row.sum_q);
  double weighted = 0;
  for (int64_t k = threadIdx.x; k < v; k += kThreads) {
    const double x = p[k] - row.most_p, a = exp(x) / row.sum_p, b = exp(q[k] - row.most_q) / row.sum_q,
                 t = double{q[k]} - double{p[k]} + shift;
    row.kl += t > 1 ? (b - a) - a * t : a * (expm1(t) - t);  // the same number, which does not overflow for large t
    row.distance += fabs(a - b);
    weighted += a * x;
  }
  row.kl = reduce(row.kl, shared, plus);
  row.distance = reduce(row.distance, shared, plus);
  row.entropy = log(row.sum_p) - reduce(weighted, shared, plus);
  TopLogits* own = top + int64_t{blockIdx.x} * count;
  Best last = best_p;
  for (int i = 0; i < count; ++i) {
    if (i > 0) last = best_after(p, v, &last, bests);
    if (threadIdx.x == 0) own[i] = {last.logit, logit_at(q, v, last.id)};
  }
  if (threadIdx.x > 0) return;
  row.top_p = best_p.id, row.top_q = best_q.id;
  row.p_at_top_q = logit_at(p, v, best_q.id), row.q_at_top_p = logit_at(q, v, best_p.id);
  row.p_at_token = p[tokens[blockIdx.x]], row.q_at_token = q[tokens[blockIdx.x]];
  found[blockIdx.x] = row;
}

}  // namespace

void row_figures(Stream stream, const float* p, const float* q, const int32_t* tokens, int64_t rows, int64_t v,
                 int count, RowFigures* found, TopLogits* top) {
  figures<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(p, q, tokens, v, count, found, top);
  cuda_check(cudaGetLastError(), "comparing logits");
}

void row_distances(Stream stream, const float* p, const float* q, int64_t rows, int64_t v, double* found) {
  distances<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(p, q, v, found);
  cuda_check(cudaGetLastError(), "comparing logits");
}

}  // namespace fidelio::cuda
