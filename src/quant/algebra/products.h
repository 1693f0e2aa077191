// Matrix products whose every bit is the same on any processor. A BLAS sums in an order of its processor's own, so the
// same model had other codes on another machine (measured: OPENBLAS_CORETYPE=Nehalem, Sandybridge and Haswell give three
// files); here the order is said:
//
//   c_ij = beta c_ij + alpha p_1 + alpha p_2 + ...,  p of 256 k each:  p = fma(a_ik, b_kj, p) from 0, for k in order
//
// Every fma is one rounding, wherever it is computed. One thread; callers share out their own work.
#pragma once
#include <cstdint>

namespace fidelio {

inline constexpr int64_t kProductRun = 256;  // k of one chain

template <typename T>
struct Factor {
  const T* values;
  int64_t stride;           // elements from one stored row to the next
  bool transposed = false;  // the stored matrix is the factor's mirror image
};

// c (m, n), row length `stride`, = alpha a b + beta c, with a (m, k), b (k, n), beta 0 or 1 (`add`) and alpha 1 or -1. For
// float and double.
template <typename T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, Factor<T> a, Factor<T> b, bool add, T* c, int64_t stride);

// x (rows, n) = x L^-T and x (n, columns) = L^-1 x, of a lower triangular L (n, n) with a positive diagonal; likewise.
void solve_right(int64_t rows, int64_t n, const double* lower, int64_t lower_stride, double* x, int64_t stride);
void solve_left(int64_t n, int64_t columns, const double* lower, int64_t lower_stride, double* x, int64_t stride);

}  // namespace fidelio
