// This file declares the operations of a step once more, in double and as plainly as they can be written. They are
// slow and readable, and tests measure all kernels against them. Matrices are row-major, with their shapes in
// parentheses.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/hadamard.h"
#include "step/gate.h"
#include "step/routes.h"

namespace fidelio::ref {

// Returns y (M, N) = x (M, K) * w (N, K)^T + bias (N). The bias may be empty.
std::vector<double> linear(std::span<const double> x, std::span<const double> w, std::span<const double> bias,
                           int64_t M, int64_t K, int64_t N);
// Returns y (M, d) = x / sqrt(mean(x^2) + eps) * weight, row by row.
std::vector<double> rmsnorm(std::span<const double> x, std::span<const double> weight, double eps, int64_t M,
                            int64_t d);
// Rotates x (heads, e) in place for one position. With n frequencies, the pairs (i, i + n) of a head's first 2 n
// columns are rotated by the angle position * inverse_frequencies[i] and multiplied by `scale`.
void rope(std::span<double> x, std::span<const double> inverse_frequencies, double scale, int64_t position,
          int64_t heads, int64_t e);
// Returns the attention (h, e) of one query row q (h, e) at `position` over keys and values (position + 1, hk, e).
// With a window of 0 it sees all positions. With sinks (h), that of a head joins its scores and gives nothing.
std::vector<double> attention(std::span<const double> q, std::span<const double> k, std::span<const double> v,
                              int64_t position, int64_t h, int64_t hk, int64_t e, int64_t window,
                              std::span<const double> sinks = {});
// Returns x (M, K) with every `group` values of a row rounded to scale * integer, where scale = max |x| / (2^(bits -
// 1) - 1) and ties go to even. This is what activations of 8 bits and fewer are. Each term of a row's dot product is
// then off by at most half a scale times the weight.
std::vector<double> rounded(std::span<const double> x, int64_t M, int64_t K, int64_t group, int bits);
// Returns gelu(gate) * up, with GELU by tanh.
std::vector<double> geglu(std::span<const double> gate, std::span<const double> up);
// Returns silu(gate) * up.
std::vector<double> swiglu(std::span<const double> gate, std::span<const double> up);
// Returns function(gate) * up, or what a clamped gate gives (step/gate.h).
std::vector<double> gated(const Gating& how, std::span<const double> gate, std::span<const double> up);
// Takes one step of the gated delta rule (op::DeltaRule) for one head: changes the state (keys, values) and writes what
// the query reads of it. `kept` is the share of the state that is kept, and `written` the share of the difference that
// is written.
struct DeltaStep {
  std::span<const double> q, k, v;
  double kept, written;
};
void delta_step(const DeltaStep& step, std::span<double> state, std::span<double> out);
// Returns exp(logits) over their sum.
std::vector<double> softmax(std::span<const double> logits);
// Returns x (M, how.columns) with every row transformed: each element of a block is the sum over the entries of a row
// of the Hadamard matrix.
std::vector<double> turned(std::span<const double> x, const Hadamard& how, int64_t M);
// An expert that a row passes, and the share of the sum that its output has.
struct ChosenExpert {
  int64_t expert;
  double share;
};
// The numbers that experts are chosen by: logits, or scores with their corrections (RoutingRule). The adjustments are
// (2, E), or empty.
std::vector<double> choice_scores(std::span<const double> logits, const RoutingRule& rule,
                                  std::span<const double> adjustments);
// The sum of the two best of each group of experts, by these numbers.
std::vector<double> group_scores(std::span<const double> by, const RoutingRule& rule);
// The experts of a row, of equal ones the first, in ascending order, with their shares.
std::vector<ChosenExpert> route(std::span<const double> logits, const RoutingRule& rule,
                                std::span<const double> adjustments);

}  // namespace fidelio::ref
