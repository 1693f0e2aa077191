// train: what a model becomes when its weights move. The forward here is one of its own, in FP32, of a dozen operations
// that each have their backward beside them; it gives the logits of the serving forward with FP32 activations (a test).
//
// Device is where those operations run. Host<float> is the product, Host<double> lets finite differences judge every
// backward, a GPU supplies the same members. Everything above (block.h, tape.h, network.h, matrix.h) is written once.
//
// Letters: n rows of a step, d, f, h, hk, e, v, L as everywhere. Matrices are row-major, dense, of Real. "+=" below says
// that a result is added to what is there; every sum has an order that does not depend on the number of threads.
#pragma once
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ranks/ranks.h"
#include "train/codes.h"
#include "train/vectors.h"

namespace fidelio::train {

// The rows of a step: whole sequences one after the other, each from position 0.
struct Sequences {
  std::vector<int32_t> ids;          // (n)
  std::vector<int32_t> begin = {0};  // (s + 1) first row of each sequence

  void append(std::span<const int32_t> sequence) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    begin.push_back(static_cast<int32_t>(ids.size()));
  }
  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
  int64_t count() const { return static_cast<int64_t>(begin.size()) - 1; }
};

struct AttentionSizes {
  int64_t h = 0, hk = 0, e = 0;
  int64_t window = 0;              // 0: all
  std::vector<float> frequencies;  // (e / 2) radians a position
  float rope_scale = 1;
};

// c (m, n) = a (m, k) b (k, n) + beta c. With a_transposed a is stored as (k, m), with b_transposed b as (n, k).
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

// What a row of logits is judged by, in nats: forward KL(teacher || student), reverse KL(student || teacher), label
// -ln q(next token). CAKLD (SCVQ section 3.4; Du et al. 2024) is reverse = the teacher's confidence, forward =
// the rest.
struct LossMix {
  double forward = 1, reverse = 0, label = 0;
};
constexpr int kLosses = 3;  // forward, reverse, label: what divergence() writes a row

// One step of AdamW (Loshchilov and Hutter 2019) without decay of its own: value -= rate unit m^ / (sqrt(v^) + eps), m^
// and v^ bias-corrected, gradients multiplied by `clip` and `unit` first, so that all parameters are counted in their own
// units (a cell of a code, a share of a scale). Then value is kept within [low, high].
struct AdamStep {
  double rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  int64_t step = 1;  // from 1
  double clip = 1;
  double low = -1e30, high = 1e30;
};

template <class D>
concept Device = requires(D d, typename D::Real* x, const typename D::Real* c, int64_t n, const typename D::Rows& rows,
                          const AttentionSizes& attention, std::span<const float> in, std::span<float> out,
                          std::span<double> wide, const Ranks& ranks, const std::vector<Message>& messages) {
  { d.allocate(n) } -> std::same_as<std::shared_ptr<typename D::Real[]>>;  // zeroed
  d.upload(in, x);
  d.download(c, out);
  d.download(c, wide);
  d.zero(x, n);
  d.copy(c, x, n);
  d.add(c, x, n);                         // x += c
  d.add_absolute(c, x, n);                // x += |c|
  d.exchange(ranks, messages, messages);  // as Ranks does, in the device's memory; no rank twice on one device
  { d.load(Sequences{}) } -> std::same_as<typename D::Rows>;
  {d.hold(c, n)};  // while the result lives, products may read these values as they were when it was made
  d.multiply(Product<typename D::Real>{});
  d.add_bias(c, n, n, x);    // x (rows, columns) += bias (columns)
  d.sum_rows(c, n, n, x);    // x (columns) += the sum over rows of c (rows, columns)
  d.gather(rows, c, n, x);   // x (n, d) = table rows of the ids
  d.scatter(rows, c, n, x);  // the transpose: table (v, d) += rows of c (n, d)
  // y = x / sqrt(mean(x^2) + eps) weight over rows of `columns`; backward: dx (+= with `add`), dweight += unless null.
  d.norm(c, c, 1.0, n, n, x);
  d.norm_backward(c, c, 1.0, n, n, c, x, true, x);
  // The same y for products alone, which read it while the result lives.
  { d.norm_for_products(c, c, 1.0, n, n, x) } -> std::same_as<typename D::Held>;
  d.rope(rows, attention, n, false, x);  // x (n, heads, e) turned in place; true: back, which is the transpose
  // softmax(q k / sqrt e) v, causal within a sequence, windowed; lse (n, h): ln of each row's sum, for the backward.
  d.attend(rows, attention, c, c, c, x, x);
  d.attend_backward(rows, attention, c, c, c, c, c, c, x, x, x);
  { d.swiglu(c, c, n, x) } -> std::same_as<typename D::Held>;  // silu(gate) up, for products alone in the same way
  // gate, up become their gradients; for products alone unless `others` read them.
  { d.swiglu_backward(x, x, n, c, false) } -> std::same_as<std::pair<typename D::Held, typename D::Held>>;
  // x = scale (x - target); returns sum of (x - target)^2 as it was.
  { d.difference(c, 1.0, n, x) } -> std::same_as<double>;
  d.scale_difference(c, 1.0, n, x);  // the same without the sum
  // Rows of logits (rows, v): losses (rows, kLosses); with gradient_scale != 0 the student's logits become
  // gradient_scale times the gradient of the mix. labels (rows): -1 or null where there is none.
  // teacher may be null: labels alone.
  d.divergence(c, x, static_cast<const int32_t*>(nullptr), n, n, LossMix{}, 1.0, x);
  { d.sum_of_squares(c, c, n) } -> std::same_as<double>;  // of value * unit; unit may be null
  d.add_squares(c, c, n, 1.0);                            // a factor times such a sum to what squares() gives
  { d.squares() } -> std::same_as<double>;                // ... since it was asked last
  d.adam(c, c, n, AdamStep{}, x, x, x);                   // gradient, unit, .., value, m, v
  d.round(c, n, Kind::bf16, x);                           // to what a dense format stores; f32: a copy
  // codes.h
  d.keep_ascending(c, n, x);  // a codebook that may be stored, of levels that a step has moved
  d.resolve(ScaleView<typename D::Real>{}, ScaleValues<typename D::Real>{});
  d.resolve_backward(ScaleView<typename D::Real>{}, ScaleGradient<typename D::Real>{});
  d.decode(CodeSizes{}, CodeView<typename D::Real>{}, x);
  d.decode_backward(CodeSizes{}, CodeView<typename D::Real>{}, CodeGradient<typename D::Real>{});
  // vectors.h
  d.decode(VectorSizes{}, VectorView<typename D::Real>{}, x);
  d.decode_backward(VectorSizes{}, VectorView<typename D::Real>{}, VectorGradient<typename D::Real>{});
};

}  // namespace fidelio::train
