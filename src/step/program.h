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
#include <vector>

#include "arch/stops.h"
#include "arch/weight_names.h"
#include "core/hadamard.h"
#include "step/attention.h"
#include "step/op.h"
#include "step/routes.h"
#include "step/state.h"

namespace fidelio {

// An OpRange is the consecutive operations [first, last) of a program.
struct OpRange {
  int32_t first = 0, last = 0;
};

struct NormWeight {
  int layer;  // -1 for a norm of no layer
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

// Needs is what a layer reads besides the stream that it begins with: values that the operations of the embedding make,
// and the keys and values of an earlier layer. A walk that goes from layer to layer with several batches makes them
// again for each (runtime/taps.h).
struct Needs {
  bool rows = false;
  int keys_of = -1;  // the earlier layer, or -1
  OpRange keys;      // the operations that make its keys and values of the stream which it begins with
};

struct Program {
  std::vector<Value> values;
  std::vector<Op> ops;
  OpRange embedding, head, draft_head;
  OpRange follow;  // in a model that drafts with its predictor, keeps what the predictor will need; otherwise empty
  std::vector<OpRange> layers;  // (L)
  std::vector<Needs> needs;     // (L)
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
