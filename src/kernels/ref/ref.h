// ref: every operation once more, in double and as plainly as it can be written. Slow, readable, the judge of all
// kernels. Matrices are row-major; shapes in parentheses.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/hadamard.h"

namespace fidelio::ref {

// y (M, N) = x (M, K) * w (N, K)^T + bias (N, may be empty)
std::vector<double> linear(std::span<const double> x, std::span<const double> w, std::span<const double> bias,
                           int64_t M, int64_t K, int64_t N);
// y (M, d) = x / sqrt(mean(x^2) + eps) * weight
std::vector<double> rmsnorm(std::span<const double> x, std::span<const double> weight, double eps, int64_t M,
                            int64_t d);
// x (heads, e) rotated in place for one position: pairs (i, i + n) of a head's first 2 n columns, n the number of
// frequencies, angle position * inverse_frequencies[i]
void rope(std::span<double> x, std::span<const double> inverse_frequencies, double scale, int64_t position,
          int64_t heads, int64_t e);
// One query row q (h, e) at `position` over keys and values (position + 1, hk, e); window 0 = all. Returns (h, e).
std::vector<double> attention(std::span<const double> q, std::span<const double> k, std::span<const double> v,
                              int64_t position, int64_t h, int64_t hk, int64_t e, int64_t window);
// Every `group` values of a row of x (M, K) rounded to scale * integer, scale = max |x| / (2^(bits - 1) - 1), ties to
// even: activations of 8 bits and fewer. What that means for the row's dot products: each term is off by at most half a
// scale.
std::vector<double> rounded(std::span<const double> x, int64_t M, int64_t K, int64_t group, int bits);
// gelu(gate) * up, GELU by tanh
std::vector<double> geglu(std::span<const double> gate, std::span<const double> up);
// silu(gate) * up
std::vector<double> swiglu(std::span<const double> gate, std::span<const double> up);
std::vector<double> softmax(std::span<const double> logits);
// Every row of x (M, how.columns) turned: each element of a block is its sum over the entries of a row of the matrix.
std::vector<double> turned(std::span<const double> x, const Hadamard& how, int64_t M);
// An expert that a row passes, and the share of the sum that its output has.
struct ChosenExpert {
  int64_t expert;
  double share;
};
// The k experts of the largest logits, of equal ones the first, in ascending order. Their shares are the softmax over
// all logits or, renormalised, over those of the k.
std::vector<ChosenExpert> route(std::span<const double> logits, int64_t k, bool renormalised);

}  // namespace fidelio::ref
