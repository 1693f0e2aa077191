// This file defines the operations that a step's program is made of (program.h), and the values that they read and
// write. The comment of each operation says what it computes; kernels/ref has each once more in double.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "step/gate.h"

namespace fidelio {

// A value has one row for each row of the batch (stream), for each pair of a row and an expert that it passes (slots),
// or for each row whose logits are wanted (logits).
enum class Rows : uint8_t { stream, slots, logits };

// A Value is a matrix that operations read and write. Layers share the values of the same name, since only the stream
// `x` outlives a layer. A prepared value is read by products alone: a backend keeps it in the form that its products
// read, and it is valid until the next prepared value is written.
struct Value {
  std::string name;
  Rows rows = Rows::stream;
  int64_t columns = 0;
  bool prepared = false;
};

// These are indices into the lists of a Program. -1 means none.
using ValueId = int32_t;
using WeightId = int32_t;   // Program::linears
using NormId = int32_t;     // Program::norms
using ExpertsId = int32_t;  // Program::experts

namespace op {

struct Embed {  // to = a table row for each token of the batch, times factor
  ValueId to;
  WeightId table;
  float factor;
};
struct Norm {  // to = rmsnorm(from) * weight; where `to` has rows of logits, of those rows of `from`
  ValueId from, to;
  NormId weight;
  float eps;
};
struct AddNorm {  // to += rmsnorm(from) * weight
  ValueId from, to;
  NormId weight;
  float eps;
};
struct Output {
  WeightId weight;
  ValueId to;
};
struct Product {  // to = W from + bias for each output; with `adds`, to += W from + bias
  ValueId from;
  std::vector<Output> outputs;
  bool adds = false;
};
// Changes q and k in place, by head: q is scaled, both are normed where there are weights, and rotated. Then k and v go
// to the layer's cache.
struct Heads {
  ValueId q, k, v;
  NormId q_norm = -1, k_norm = -1;
  int layer = 0;  // an index into AttentionShape::layers, which are the layers with attention
};
// Does what Heads does to q alone, in a layer that reads the keys and values of an earlier one.
struct Queries {
  ValueId q;
  NormId norm = -1;
  int layer = 0;  // the earlier layer, as Heads::layer
};
// to = rmsnorm(from) * weight, over each run of as many columns as the weight has; with `adds`, to += that.
struct NormHeads {
  ValueId from, to;
  NormId weight;
  float eps;
  bool adds = false;
};
// to = softmax(q k / sqrt(e)) v, causal, over the layer's cache and within its window. Where there are sinks, each
// head's own joins the scores as that of a further position, whose value is zero.
struct Attend {
  ValueId q, to;
  int layer;          // as Heads::layer
  NormId sinks = -1;  // (h)
};
struct GateHeads {  // to = from * sigmoid(gate)
  ValueId from, gate, to;
};
struct SplitGate {  // by head of from (n, h, 2, e): to = its first e columns, gate = the others
  ValueId from, to, gate;
};
// to = silu(the convolution of each column of `from` over the sequence's positions), whose newest inputs are part of
// the state: to[t] = sum_i w[i] from[t - kernel + 1 + i], with zeros before the sequence.
struct Convolve {
  ValueId from, to;
  int delta;  // an index into Program::deltas
};
// The gated delta rule (Yang et al., arXiv 2412.06464). The columns of `from` are q and k of all key heads, then v of
// all value heads. For each value head, whose state S is (key_dim, value_dim), and with q and k of its key head divided
// by their norms, as x / sqrt(sum x^2 + 1e-6), and q by sqrt(key_dim) besides:
//
//   S = e^decay S,  decay = -e^log_rate log(1 + e^(a + step_bias))
//   S = S + k (sigmoid(b) (v - k S)),  to = q S
struct DeltaRule {
  ValueId from, b, a, to;
  int delta;
};
struct GatedNorm {  // to = rmsnorm(from) * weight * function(gate), by head of value_dim columns
  ValueId from, gate, to;
  NormId weight;
  float eps;
  Gate function;
};
struct AddShared {  // to += sigmoid(gate) * from, where gate has one column
  ValueId from, gate, to;
};
// The predictor's input. to[row] = from[row - 1]; the first row of a segment has what its state carries. After the rows
// whose states are kept, these carry the row of `from`.
struct Before {
  ValueId from, to;
};
struct Carry {  // the states kept after rows carry the rows of `from`
  ValueId from;
};
struct Join {  // to = the columns of a, and then those of b
  ValueId a, b, to;
};
struct Columns {  // to = the columns of `from` from this one on
  ValueId from, to;
  int64_t first;
};
struct Clear {  // to = 0
  ValueId to;
};
struct Scale {  // to = to * the only value of this norm's weight
  ValueId to;
  NormId factor;
};
struct Softcap {  // to = cap * tanh(to / cap), for rows of logits
  ValueId to;
  float cap;
};
struct Gated {  // to = function(gate) * up
  ValueId gate, up, to;
  Gating function;
};
struct Turn {  // to = from, every row multiplied by a Hadamard matrix (QuaRot)
  ValueId from, to;
  int hadamard;  // Program::hadamards
};
struct Reorder {  // to = the columns of `from` in another order, those kept in 8 bits last and twice (Atom)
  ValueId from, to;
  int order;  // Program::orders
};
struct Route {  // logits = router(from) + its bias, and each row chooses its k experts by them (RoutingRule)
  ValueId from, logits;
  int router;                      // Program::routers
  std::vector<ExpertsId> readers;  // the experts that the chosen rows meet
};
struct Take {  // to = rows of `from`, one for each slot
  ValueId from, to;
};
struct RoutedOutput {
  ExpertsId weights;
  ValueId to;
};
struct RoutedProduct {  // to = every slot by the matrix of its expert
  ValueId from;
  std::vector<RoutedOutput> outputs;
};
struct Combine {  // to += each row's slots of `from` under the row's shares
  ValueId from, to;
};
struct Spread {  // to = the logits of a draft's vocabulary at their tokens, -infinity elsewhere
  ValueId from, to;
};

}  // namespace op

using Op =
    std::variant<op::Embed, op::Norm, op::AddNorm, op::Product, op::Heads, op::Queries, op::NormHeads, op::Attend,
                 op::GateHeads, op::SplitGate, op::Convolve, op::DeltaRule, op::GatedNorm, op::AddShared, op::Before,
                 op::Carry, op::Join, op::Columns, op::Clear, op::Scale, op::Softcap, op::Gated, op::Turn, op::Reorder,
                 op::Route, op::Take, op::RoutedProduct, op::Combine, op::Spread>;

}  // namespace fidelio
