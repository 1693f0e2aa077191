// A layer as stops, in the order in which it runs. A stop is the linears that read one input:
//
//   stream -> norm -> [qkv] q k v -> attention -> [o] o -> + -> norm -> [gate_up] gate up -> SwiGLU -> [down] down -> +
//
// A model says which stops its layers have; they may differ from layer to layer. The linears of a stop are quantised
// against one Hessian, wait in one entry of a journal, are one group of the sensitivity, and take one format where a
// serving engine runs them as one product.
#pragma once
#include <span>
#include <vector>

#include "arch/weight_names.h"

namespace fidelio {

struct Stop {
  std::string_view name;  // "qkv": the stop of layer 3 is "layers.3.qkv"
  std::span<const Role> roles;
  bool adds = false;    // its linear adds to the stream, so the input of the next stop waits for it
  bool routed = false;  // its linears are the experts', each of which reads rows of its own
};

// Returns the stops of a layer, in the order in which they run. They live as long as the program.
std::span<const Stop> stops_of(const ModelConfig& config, int layer);
// Returns the layer's stop of that name. Throws Error if it has none.
const Stop& stop_of(const ModelConfig& config, int layer, std::string_view name);
// Returns every stop of a model with its layer, in the order in which they run.
struct LayerStop {
  int layer;
  const Stop* stop;
};
std::vector<LayerStop> stops_of(const ModelConfig& config);

// The name of the stop that a linear belongs to: "layers.3.qkv". An embedding or a head is alone under its own name.
std::string stop_of(LinearId id);
std::string stop_name(int layer, const Stop& stop);

}  // namespace fidelio
