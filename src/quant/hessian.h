// This file holds second-order statistics of a linear's input, and the factor that GPTQ takes its error feedback
// from.
//
// H is the sum over calibration tokens of x x^T, (in, in), in FP32. The loss of replacing W by Q on the calibration
// data is exactly tr((W - Q) H (W - Q)^T). Linears that share an input (q, k, v; gate, up) share H and its factor.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "core/thread_pool.h"

namespace fidelio {

class Hessian {
 public:
  explicit Hessian(int64_t in);

  // Adds the rows of x (tokens, in). The same calls give the same bits for any number of threads. Throws Error if the
  // size is not a multiple of `in`.
  void add(std::span<const float> x, ThreadPool& pool);

  int64_t in() const { return in_; }
  int64_t tokens() const { return tokens_; }
  std::span<const float> matrix() const { return {sums_.as<const float>(), static_cast<size_t>(in_ * in_)}; }
  // Makes a Hessian from its symmetric matrix (in, in), for statistics read from a file and for tests.
  static Hessian from_matrix(std::span<const float> matrix, int64_t in, int64_t tokens);
  Hessian copy() const { return from_matrix(matrix(), in_, tokens_); }

 private:
  int64_t in_ = 0, tokens_ = 0;
  Buffer sums_;
};

// A HessianFactor is what GPTQ needs of H: an order of the columns, and the upper triangular U with U^T U = (H +
// damping)^-1 in that order (GPTQ, Frantar et al. 2023, section 3.3, step 3). It is computed in FP64.
struct HessianFactor {
  int64_t in = 0;
  std::vector<int32_t> order;  // maps a step to its column
  Buffer upper;                // f32 (in, in) by step: row j holds U_jj .. U_j,in-1, with zeros below the diagonal
  // (in) by column: 1 / U_jj^2. It is the price of a rounding error in that column if all later columns compensate
  // for it.
  std::vector<float> weight;
  double damping = 0;  // what was added to the diagonal, as a fraction of its mean
  int64_t dead = 0;    // number of columns with H_ii = 0, which no calibration token used

  // Returns entry (step, other) of U.
  float u(int64_t step, int64_t other) const { return upper.as<const float>()[step * in + other]; }
};

// Factorises H. `damping` is the fraction of the mean diagonal to begin with. It grows tenfold (0 becomes 1e-8) until
// the Cholesky factorisation succeeds, and the factor says which was used. With `act_order` columns are taken by
// descending H_ii, otherwise in storage order. Throws Error if H has entries that are not finite or a negative
// diagonal.
HessianFactor factorize(const Hessian& hessian, double damping, bool act_order, ThreadPool& pool);

}  // namespace fidelio
