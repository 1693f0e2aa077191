// This file has what the operations of host.h share: OpenBLAS by element type, exp of rows, and sums in a fixed
// order.
#pragma once
#include <cmath>
#include <cstdint>

#include "core/fast_exp.h"
#include "train/host/blas.h"

namespace fidelio::train {

// Computes c (m, n) = alpha op(a) op(b) + beta c. Leading dimensions are in elements.
inline void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                 const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  blas.sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, static_cast<int>(m),
             static_cast<int>(n), static_cast<int>(k), alpha, a, static_cast<int>(lda), b, static_cast<int>(ldb), beta,
             c, static_cast<int>(ldc));
}
inline void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
                 const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  blas.dgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, static_cast<int>(m),
             static_cast<int>(n), static_cast<int>(k), alpha, a, static_cast<int>(lda), b, static_cast<int>(ldb), beta,
             c, static_cast<int>(ldc));
}

// Computes y = exp(x - shift). In FP32 an argument below -87 gives exp(-87), which is negligible beside a sum of at
// least 1.
inline void exp_row(const double* x, double shift, int64_t n, double* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i] - shift);
}
inline void exp_row(const float* x, float shift, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) store4(y + i, fast_exp(load4(x + i) - shift));
  float last[4] = {};
  for (int64_t j = i; j < n; ++j) last[j - i] = x[j] - shift;
  store4(last, fast_exp(load4(last)));
  for (int64_t j = i; j < n; ++j) y[j] = last[j - i];
}

// Returns the sum of f(i) over eight lanes, which the compiler keeps in vectors.
template <typename T, typename F>
T sum_lanes(int64_t n, const F& f) {
  T lane[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int64_t j = 0; j < 8; ++j) lane[j] += f(i + j);
  for (; i < n; ++i) lane[i % 8] += f(i);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}
template <typename T>
T dot(const T* a, const T* b, int64_t n) {
  return sum_lanes<T>(n, [=](int64_t i) { return a[i] * b[i]; });
}

}  // namespace fidelio::train
