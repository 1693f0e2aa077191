// This file defines the operations that tuning a model by gradients needs. Training has a forward pass of its own, in
// FP32, made of a dozen operations that each have their backward operation beside them. A test holds its logits to
// those of the serving forward with FP32 activations.
//
// A Device is where those operations run. Host<float> is used on a CPU, Host<double> lets finite differences check
// every backward operation, and Gpu has the members that a Device must have. Everything above (block.h, tape.h,
// network.h, matrix.h) is written once.
//
// The letters mean: n rows of a step; d, f, h, hk, e, v and L as in ModelConfig. Matrices are row-major and dense, of
// type Real. Below, "+=" says that a result is added to what is there. Every sum has an order that does not depend on
// the number of threads.
#pragma once
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "arch/model_config.h"
#include "core/error.h"
#include "ranks/ranks.h"
#include "step/gate.h"
#include "train/codes.h"
#include "train/vectors.h"

namespace fidelio::train {

// Sequences are the rows of a step: whole sequences one after the other, each from position 0.
struct Sequences {
  std::vector<int32_t> ids;          // (n)
  std::vector<int32_t> begin = {0};  // (s + 1) the first row of each sequence

  void append(std::span<const int32_t> sequence) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    begin.push_back(static_cast<int32_t>(ids.size()));
  }
  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
  int64_t count() const { return static_cast<int64_t>(begin.size()) - 1; }
};

struct AttentionSizes {
  int64_t h = 0, hk = 0, e = 0;
  int64_t window = 0;  // 0 means all keys
  // In radians per position. With r of them, the pairs (i, i + r) of a head's first 2 r columns are rotated.
  std::vector<float> frequencies;
  float rope_scale = 1;
};

// DeltaRates say how fast the heads of a delta net forget (op::DeltaRule in step/program.h).
template <typename Real>
struct DeltaRates {
  const Real *log_rate, *step_bias;  // (value_heads)
};

// A Product computes c (m, n) = a (m, k) b (k, n) + beta c. With a_transposed, a is stored as (k, m); with
// b_transposed, b is stored as (n, k).
template <typename Real>
struct Product {
  int64_t m, n, k;
  const Real* a;
  bool a_transposed;
  const Real* b;
  bool b_transposed;
  Real beta;
  Real* c;
};

// A LossMix weights the losses of a row of logits, in nats: forward KL(teacher || student), reverse KL(student ||
// teacher), and label -ln q(next token). CAKLD (SCVQ section 3.4; Du et al. 2024) has the teacher's confidence as
// `reverse` and the rest as `forward`.
struct LossMix {
  double forward = 1, reverse = 0, label = 0;
};
constexpr int kLosses = 3;  // the losses forward, reverse and label, which divergence() writes for each row

// An AdamStep is one step of AdamW (Loshchilov and Hutter 2019) without weight decay: value -= rate unit m^ /
// (sqrt(v^) + eps), where m^ and v^ are corrected for bias. Gradients are first multiplied by `clip` and `unit`, so
// that all parameters are counted in their own units (a cell of a code, a share of a scale). Then value is kept
// within [low, high].
struct AdamStep {
  double rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  int64_t step = 1;  // counted from 1
  double clip = 1;
  double low = -1e30, high = 1e30;
};

template <class D>
concept Device = requires(D d, typename D::Real* x, const typename D::Real* c, int64_t n, const typename D::Rows& rows,
                          const AttentionSizes& attention, std::span<const float> in, std::span<float> out,
                          std::span<double> wide, const Ranks& ranks, const std::vector<Message>& messages) {
  { d.allocate(n) } -> std::same_as<std::shared_ptr<typename D::Real[]>>;  // the memory is zeroed
  d.upload(in, x);
  d.download(c, out);
  d.download(c, wide);
  d.zero(x, n);
  d.copy(c, x, n);
  d.add(c, x, n);           // x += c
  d.add_absolute(c, x, n);  // x += |c|
  // This does what Ranks::exchange does, in the device's memory; two ranks must not share a device.
  d.exchange(ranks, messages, messages);
  { d.load(Sequences{}) } -> std::same_as<typename D::Rows>;
  {d.hold(c, n)};  // while the result lives, products may read these values as they were when it was made
  d.multiply(Product<typename D::Real>{});
  d.add_bias(c, n, n, x);    // x (rows, columns) += bias (columns)
  d.sum_rows(c, n, n, x);    // x (columns) += the sum over rows of c (rows, columns)
  d.gather(rows, c, n, x);   // x (n, d) = table rows of the ids
  d.scatter(rows, c, n, x);  // the transpose: table (v, d) += rows of c (n, d)
  // y = x / sqrt(mean(x^2) + eps) weight, over rows of `columns`. The backward operation computes dx (or dx += with
  // `add`) and dweight += unless that is null.
  d.norm(c, c, 1.0, n, n, x);
  d.norm_backward(c, c, 1.0, n, n, c, x, true, x);
  // This computes the same y for products only, which may read it while the result lives.
  { d.norm_for_products(c, c, 1.0, n, n, x) } -> std::same_as<typename D::Held>;
  // Rotates x (n, heads, e) in place by position; with true back, which is the transpose.
  d.rope(rows, attention, n, false, x);
  // Computes softmax(q k / sqrt e) v, causal within a sequence and windowed. lse (n, h), the logarithm of each row's
  // sum, is for the backward operation.
  d.attend(rows, attention, c, c, c, x, x);
  d.attend_backward(rows, attention, c, c, c, c, c, c, x, x, x);
  { d.swiglu(c, c, n, x) } -> std::same_as<typename D::Held>;  // silu(gate) up, for products only in the same way
  // gate and up are replaced by their gradients, which are for products only unless `others` read them.
  { d.swiglu_backward(x, x, n, c, false) } -> std::same_as<std::pair<typename D::Held, typename D::Held>>;
  // x = scale (x - target). Returns the sum of (x - target)^2 before that.
  { d.difference(c, 1.0, n, x) } -> std::same_as<double>;
  d.scale_difference(c, 1.0, n, x);  // the same without the sum
  // Computes losses (rows, kLosses) for rows of logits (rows, v). If gradient_scale is not 0, the student's logits
  // are replaced by gradient_scale times the gradient of the mix. labels (rows) are -1 where there is none, or null.
  // teacher may be null, and then only labels count.
  d.divergence(c, x, static_cast<const int32_t*>(nullptr), n, n, LossMix{}, 1.0, x);
  { d.sum_of_squares(c, c, n) } -> std::same_as<double>;  // the sum of squares of value * unit; unit may be null
  d.add_squares(c, c, n, 1.0);              // adds such a sum, times a factor, to what squares() will return
  { d.squares() } -> std::same_as<double>;  // returns what was added since it was last called
  d.adam(c, c, n, AdamStep{}, x, x, x);     // the arguments are gradient, unit, .., value, m, v
  d.round(c, n, Kind::bf16, x);             // rounds to what a dense format stores; for f32 it copies
  // The next operations are for codes (codes.h).
  d.keep_ascending(c, n, x);  // turns levels that a step has moved into a codebook that may be stored
  d.resolve(ScaleView<typename D::Real>{}, ScaleValues<typename D::Real>{});
  d.resolve_backward(ScaleView<typename D::Real>{}, ScaleGradient<typename D::Real>{});
  d.decode(CodeSizes{}, CodeView<typename D::Real>{}, x);
  d.decode_backward(CodeSizes{}, CodeView<typename D::Real>{}, CodeGradient<typename D::Real>{});
  // The next operations are for vector codes (vectors.h).
  d.decode(VectorSizes{}, VectorView<typename D::Real>{}, x);
  d.decode_backward(VectorSizes{}, VectorView<typename D::Real>{}, VectorGradient<typename D::Real>{});
};

// A HybridDevice has the operations of layers with gated delta nets and of gates on attention besides. A Device without
// them tunes other models.
template <class D>
concept HybridDevice = Device<D> &&
    requires(D d, typename D::Real* x, const typename D::Real* c, int64_t n, const typename D::Rows& rows,
             const DeltaNet& net, const DeltaRates<typename D::Real>& rates) {
  // y = silu(convolution of x) with the weight (channels, kernel), as op::Convolve has it, from x and y (n, channels).
  // The backward operation replaces dy by dx.
  d.convolve(rows, net, c, c, x);
  d.convolve_backward(rows, net, c, c, x);
  // y (n, values) is what op::DeltaRule reads with q, k, v of u (n, channels), b and a (n, value_heads). The backward
  // operation replaces u, b and a by their gradients.
  d.delta_rule(rows, net, rates, c, c, c, x);
  d.delta_rule_backward(rows, net, rates, c, x, x, x);
  // y = function(gate) x for silu or sigmoid. The backward operation replaces gate by its gradient, and dy by dx.
  d.gated(Gate::silu, c, c, n, x);
  d.gated_backward(Gate::silu, x, c, n, x);
  d.split_pairs(c, n, n, x, x);  // from (rows, 2, columns) to a and b (rows, columns), and back
  d.join_pairs(c, c, n, n, x);
};

}  // namespace fidelio::train
