// A layer's MLP where it is a mixture of experts (ModelConfig::experts): a part of runtime/forward/forward.h, as written once.
#pragma once
#include <array>

#include "kernels/cpu/routing.h"
#include "runtime/forward/workspace.h"

namespace fidelio {

inline Gate gate_of(const ModelConfig& config) {
  return config.blocks.activation == Activation::silu ? Gate::silu : Gate::gelu_tanh;
}

// After experts were given other weights.
template <Backend B>
void collect_experts(B& b, Layer<B>& layer) {
  std::vector<const typename B::Linear*> of[3];
  for (const Expert<B>& expert : layer.experts) {
    of[0].push_back(expert.gate.get());
    of[1].push_back(expert.up.get());
    of[2].push_back(expert.down.get());
  }
  layer.gates = b.experts(of[0]), layer.ups = b.experts(of[1]), layer.downs = b.experts(of[2]);
}
inline RoutingRule routing_rule(const ModelConfig& c) { return {c.experts, c.experts_per_row, c.renormalised}; }
template <Backend B>
std::array<const typename B::Experts*, 3> experts_of(const Layer<B>& layer) {
  return {&layer.gates, &layer.ups, &layer.downs};
}

// The stream normalised, in w.normed, and which experts its rows pass; `next`: those they meet, if nobody asks which.
template <Backend B>
void choose_experts(B& b, const Model<B>& model, int index, Workspace<B>& w,
                    std::span<const typename B::Experts* const> next) {
  const Layer<B>& layer = model.layers[static_cast<size_t>(index)];
  b.normalise(w.x, layer.mlp_norm, model.scalars.eps, w.normed);
  b.route(w.normed, *layer.router, routing_rule(model.config), next, w.routing);
}

// Gate and up of the experts that were chosen, up to the input of their down.
template <Backend B>
typename B::Acts experts_half(B& b, const Model<B>& model, int index, Workspace<B>& w) {
  const Layer<B>& layer = model.layers[static_cast<size_t>(index)];
  const RoutedProduct<typename B::Experts, typename B::Matrix> gate_up[] = {{&layer.gates, &w.gate},
                                                                            {&layer.ups, &w.up}};
  const auto input = b.routed(w.normed);
  b.linear_routed(input, gate_up);
  return b.gated(w.gate, w.up, gate_of(model.config), input.rows);
}

// x += what downs make of that, under the rows' shares.
template <Backend B>
void add_given(B& b, const Model<B>& model, int index, Workspace<B>& w, typename B::Acts gated) {
  const RoutedProduct<typename B::Experts, typename B::Matrix> down[] = {
      {&model.layers[static_cast<size_t>(index)].downs, &w.given}};
  b.linear_routed(gated, down);
  b.add_routed(w.given, w.x);
}

template <Backend B>
void add_experts(B& b, const Model<B>& model, int index, Workspace<B>& w) {
  choose_experts(b, model, index, w, experts_of(model.layers[static_cast<size_t>(index)]));
  add_given(b, model, index, w, experts_half(b, model, index, w));
}

}  // namespace fidelio
