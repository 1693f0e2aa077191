// This file has matrix products whose every bit is the same on any processor. A BLAS sums in an order that depends on
// the processor, so the same model got other codes on another machine (measured: OPENBLAS_CORETYPE=Nehalem,
// Sandybridge and Haswell give three files). Here the order is fixed:
//
//   c_ij = beta c_ij + alpha p_1 + alpha p_2 + ...,  p of 256 k each:  p = fma(a_ik, b_kj, p) from 0, for k in order
//
// Every fma rounds once, wherever it is computed. The functions run in one thread; callers divide the work among
// threads.
#pragma once
#include <cstdint>

namespace fidelio {

inline constexpr int64_t kProductRun = 256;  // the number of k in one chain of fmas

template <typename T>
struct Factor {
  const T* values;
  int64_t stride;           // elements from one stored row to the next
  bool transposed = false;  // if true, the stored matrix is the factor's transpose
};

// Computes c = alpha a b + beta c, with a (m, k), b (k, n) and c (m, n) whose rows are `stride` apart. beta is 1 if
// `add` is true and 0 otherwise; alpha is 1 or -1. T is float or double.
template <typename T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, Factor<T> a, Factor<T> b, bool add, T* c, int64_t stride);

// solve_right computes x = x L^-T for x (rows, n), and solve_left x = L^-1 x for x (n, columns), both in place. L (n,
// n) is lower triangular with a positive diagonal. Their order of operations is fixed too.
void solve_right(int64_t rows, int64_t n, const double* lower, int64_t lower_stride, double* x, int64_t stride);
void solve_left(int64_t n, int64_t columns, const double* lower, int64_t lower_stride, double* x, int64_t stride);

}  // namespace fidelio
