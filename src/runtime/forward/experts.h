// A layer's MLP where it is a mixture of experts (ModelConfig::experts): a part of runtime/forward/forward.h, as written once.
#pragma once
#include "runtime/forward/routing.h"
#include "runtime/forward/workspace.h"

namespace fidelio {

inline Gate gate_of(const ModelConfig& config) {
  return config.blocks.activation == Activation::silu ? Gate::silu : Gate::gelu_tanh;
}

// Which experts the rows of the stream pass; their input is in w.normed then.
template <Backend B>
void choose_experts(B& b, const Model<B>& model, int index, Workspace<B>& w, int64_t rows) {
  const Layer<B>& layer = model.layers[static_cast<size_t>(index)];
  const ModelConfig& c = model.config;
  b.copy(w.x, w.normed, rows);
  b.normalise(w.normed, layer.mlp_norm, model.scalars.eps);
  const std::pair<const typename B::Linear*, typename B::Matrix*> router[] = {{layer.router.get(), &w.routing}};
  b.linear(b.input(w.normed), router);
  const std::span logits(w.host_routing.data(), static_cast<size_t>(rows * c.experts));
  b.download(w.routing, 0, rows, logits);
  route(logits, {c.experts, c.experts_per_row, c.renormalised}, w.routes);
}

// Gate and up of the experts that w.routes names, up to the input of their down.
template <Backend B>
typename B::Acts experts_half(B& b, const Model<B>& model, int index, Workspace<B>& w) {
  const Layer<B>& layer = model.layers[static_cast<size_t>(index)];
  b.follow(w.routes);
  w.products.clear();
  for (const auto& [expert, first, slots] : w.routes.groups) {
    const Expert<B>& of = layer.experts[static_cast<size_t>(expert)];
    w.products.push_back({of.gate.get(), &w.gate, first, slots});
    w.products.push_back({of.up.get(), &w.up, first, slots});
  }
  b.linear_routed(b.routed(w.normed), w.products);
  return b.gated(w.gate, w.up, gate_of(model.config), w.routes.count());
}

// x += what downs make of that, under the rows' shares.
template <Backend B>
void add_given(B& b, const Model<B>& model, int index, Workspace<B>& w, typename B::Acts gated) {
  const Layer<B>& layer = model.layers[static_cast<size_t>(index)];
  w.products.clear();
  for (const auto& [expert, first, slots] : w.routes.groups)
    w.products.push_back({layer.experts[static_cast<size_t>(expert)].down.get(), &w.given, first, slots});
  b.linear_routed(gated, w.products);
  b.add_routed(w.given, w.x);
}

template <Backend B>
void add_experts(B& b, const Model<B>& model, int index, Workspace<B>& w, int64_t rows) {
  choose_experts(b, model, index, w, rows);
  add_given(b, model, index, w, experts_half(b, model, index, w));
}

}  // namespace fidelio
