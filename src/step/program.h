// This file defines Program: one step of a model as data.
//
// A step takes a batch of rows through the model. Its program lists the operations that this takes, in order, with
// the values that they read and write. build.h makes it from a ModelConfig, every backend runs it
// (runtime/execution/executor.h), and to_text() shows it:
//
//   layer 3
//     norm     input <- x, layers.3.attn_norm, eps 1e-06
//     product  q k v <- input, layers.3.q layers.3.k layers.3.v  # tap layers.3.qkv
//     heads    q k v, rotation 0, cache 3
//     attend   heads <- q, cache 3
//     product  x += heads, layers.3.o  # tap layers.3.o
//     ...
//
// Letters: n rows of the batch, d model dim, f ffn dim, h heads, hk kv heads, e head dim, v vocabulary, L layers, E
// experts, k experts per row.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "arch/stops.h"
#include "arch/weight_names.h"
#include "core/hadamard.h"
#include "step/attention.h"
#include "step/gate.h"
#include "step/routes.h"
#include "step/state.h"

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

// These are the operations. The comment of each says what it computes. kernels/ref has each once more in double.
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
struct Attend {  // to = softmax(q k / sqrt(e)) v, causal, over the layer's cache and within its window
  ValueId q, to;
  int layer;  // as Heads::layer
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
struct Gated {  // to = function(gate) * up
  ValueId gate, up, to;
  Gate function;
};
struct Turn {  // to = from, every row multiplied by a Hadamard matrix (QuaRot)
  ValueId from, to;
  int hadamard;  // Program::hadamards
};
struct Reorder {  // to = the columns of `from` in another order, those kept in 8 bits last and twice (Atom)
  ValueId from, to;
  int order;  // Program::orders
};
struct Route {  // logits = router(from), and each row chooses its k experts by them
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

using Op = std::variant<op::Embed, op::Norm, op::AddNorm, op::Product, op::Heads, op::Attend, op::GateHeads,
                        op::SplitGate, op::Convolve, op::DeltaRule, op::GatedNorm, op::AddShared, op::Gated, op::Turn,
                        op::Reorder, op::Route, op::Take, op::RoutedProduct, op::Combine, op::Spread>;

// An OpRange is the consecutive operations [first, last) of a program.
struct OpRange {
  int32_t first = 0, last = 0;
};

struct NormWeight {
  int layer;  // -1 for the final norm
  Norm norm;
  float factor;  // the file's weight is multiplied by it when it is loaded
};
struct OrderOf {
  int layer;
  const Stop* stop;
};
struct LayerExperts {
  int layer;
  Role role;  // gate, up or down
};

// A Tap is a place where the input of linears can be observed, or given from outside (runtime/taps.h).
struct Tap {
  int layer;
  const Stop* stop;
  ValueId input;   // what the stop's linears read
  int32_t block;   // the first operation of the attention or the MLP that the stop is in
  int32_t reader;  // the operation that reads the input: a product, or for gates and ups of experts a Take
  int32_t end;     // the operation after those that add the result to the stream, if the stop's linear does
  ValueId spare;   // a value of the input's shape that nobody reads from the reader on; -1: none
};

struct Program {
  std::vector<Value> values;
  std::vector<Op> ops;
  OpRange embedding, head, draft_head;
  std::vector<OpRange> layers;  // (L)
  std::vector<Tap> taps;        // by layer, in the order of its stops

  // These are all linears of the model, in the order of linears_of(), and then those of fixed_linears_of(). A head that
  // is tied to the embedding comes last: it has the embedding's weight unless somebody gives it another.
  std::vector<LinearId> linears;
  std::vector<NormWeight> norms;
  std::vector<LayerExperts> experts;
  std::vector<int> routers;  // their layers
  std::vector<int> deltas;   // the layers with a delta net, whose states have the same order
  std::vector<OrderOf> orders;
  std::vector<Hadamard> hadamards;
  RoutingRule routing;
  AttentionShape attention;
  StateShape state;  // what a sequence keeps besides keys and values

  ValueId stream = -1, logits = -1, draft_logits = -1;
  WeightId head_weight = -1;  // the linear that gives logits
};

// Returns the program as text, as above: its values, and then one line for each operation with its taps.
std::string to_text(const Program& program);

}  // namespace fidelio
