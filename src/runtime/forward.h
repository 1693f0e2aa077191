// The transformer, written once. Every backend, mode and use (prefill, decode, verify, perplexity, calibration) runs
// this.
#pragma once
#include "runtime/model.h"
#include "runtime/routing.h"
#include "runtime/runner.h"

namespace fidelio {

// The matrices of one step, (rows, columns) of the largest batch.
template <Backend B>
struct Workspace {
  typename B::Matrix x;         // (n, d) the residual stream
  typename B::Matrix q, k, v;   // (n, h e), (n, hk e), (n, hk e)
  typename B::Matrix gate, up;  // (n, f), of experts (n k, f)
  typename B::Matrix branch;    // (n, d) what attention or the MLP adds, where it is normalised first; else rows 0
  typename B::Matrix logits;    // (logit rows, v)
  // Of a model with experts: their input, the router's logits, what they give, and the work that follows from the choice.
  typename B::Matrix normed, routing, given;  // (n, d), (n, E), (n k, d)
  typename B::HostFloats host_routing;        // (n, E)
  Routes routes;
  std::vector<RoutedLinear<typename B::Linear, typename B::Matrix>> products;
};

template <Backend B>
Workspace<B> allocate_matrices(B& b, const ModelConfig& c, int64_t rows, int64_t logit_rows) {
  Workspace<B> w;
  w.x = b.allocate(rows, c.d);
  w.q = b.allocate(rows, int64_t{c.h} * c.e);
  w.k = b.allocate(rows, int64_t{c.hk} * c.e);
  w.v = b.allocate(rows, int64_t{c.hk} * c.e);
  const int64_t slots = rows * std::max(1, c.experts_per_row);
  w.gate = b.allocate(slots, c.f);
  w.up = b.allocate(slots, c.f);
  if (c.blocks.norm_after) w.branch = b.allocate(rows, c.d);
  w.logits = b.allocate(logit_rows, c.v);
  if (c.experts == 0) return w;
  w.normed = b.allocate(rows, c.d);
  w.routing = b.allocate(rows, c.experts);
  w.given = b.allocate(slots, c.d);
  w.host_routing.resize(static_cast<size_t>(rows * c.experts));
  w.products.reserve(2 * static_cast<size_t>(c.experts));
  return w;
}

// What attention and the MLP see: the stream, normalised where the family does so before them.
template <Backend B>
typename B::Acts branch_input(B& b, const typename B::Matrix& x, const typename B::Matrix& norm, float eps) {
  return norm.rows > 0 ? b.norm(x, norm, eps) : b.input(x);
}

// What weights whose columns have an order of their own see.
template <Backend B>
typename B::Acts ordered(B& b, typename B::Acts acts, const typename B::Order& order) {
  return order.empty() ? acts : b.gather(acts, order);
}

// What o and down see.
template <Backend B>
typename B::Acts turned(B& b, typename B::Acts acts, const Turn<B>& turn) {
  return turn.how.order > 1 ? b.turn(acts, turn.how, turn.signs) : acts;
}

// x += W a, normalised before it is added where the family does so.
template <Backend B>
void add_branch(B& b, const Model<B>& model, typename B::Acts acts, const typename B::Linear& weight,
                const typename B::Matrix& norm, Workspace<B>& w) {
  if (norm.rows == 0) return b.linear_add(acts, weight, w.x);
  const std::pair<const typename B::Linear*, typename B::Matrix*> output[] = {{&weight, &w.branch}};
  b.linear(acts, output);
  b.add_normed(w.branch, norm, model.scalars.branch_eps, w.x);
}

// The two halves of a layer up to the input of their last linear. The stream x is read, not changed.
template <Backend B>
typename B::Acts attention_half(B& b, Model<B>& model, int index, Workspace<B>& w, typename B::KvCache& cache) {
  Layer<B>& layer = model.layers[static_cast<size_t>(index)];
  const std::pair<const typename B::Linear*, typename B::Matrix*> qkv[] = {
      {layer.q.get(), &w.q}, {layer.k.get(), &w.k}, {layer.v.get(), &w.v}};
  b.upcoming({layer.o.get()});
  const auto input = branch_input(b, w.x, layer.attn_norm, model.scalars.eps);
  b.linear(ordered(b, input, layer.order(InputId::attn_in)), qkv);
  if (model.config.blocks.qk_norm == QkNorm::width) {
    b.normalise(w.q, layer.q_norm, model.attention.norm_eps);
    b.normalise(w.k, layer.k_norm, model.attention.norm_eps);
  }
  const bool by_head = model.config.blocks.qk_norm == QkNorm::head;
  b.rope_append(w.q, w.k, w.v, by_head ? &layer.q_norm : nullptr, by_head ? &layer.k_norm : nullptr, cache, index);
  return ordered(b, turned(b, b.attend(w.q, cache, index), model.attended), layer.order(InputId::o_in));
}

inline Gate gate_of(const ModelConfig& config) {
  return config.blocks.activation == Activation::silu ? Gate::silu : Gate::gelu_tanh;
}

template <Backend B>
typename B::Acts mlp_half(B& b, Model<B>& model, int index, Workspace<B>& w) {
  Layer<B>& layer = model.layers[static_cast<size_t>(index)];
  const std::pair<const typename B::Linear*, typename B::Matrix*> gate_up[] = {{layer.gate.get(), &w.gate},
                                                                               {layer.up.get(), &w.up}};
  b.upcoming({layer.down.get()});
  const auto input = branch_input(b, w.x, layer.mlp_norm, model.scalars.eps);
  b.linear(ordered(b, input, layer.order(InputId::mlp_in)), gate_up);
  return ordered(b, turned(b, b.gated(w.gate, w.up, gate_of(model.config), input.rows), model.gated),
                 layer.order(InputId::down_in));
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

// The whole model's layer `index`.
template <Backend B>
void forward_layer(B& b, Model<B>& model, int index, Workspace<B>& w, typename B::KvCache& cache) {
  Layer<B>& layer = model.layers[static_cast<size_t>(index)];
  const auto attended = attention_half(b, model, index, w, cache);
  if (layer.experts.empty()) b.upcoming({layer.gate.get(), layer.up.get()});
  add_branch(b, model, attended, *layer.o, layer.post_attn_norm, w);
  if (!layer.experts.empty()) return add_experts(b, model, index, w, attended.rows);
  const auto gated = mlp_half(b, model, index, w);
  if (static_cast<size_t>(index) + 1 < model.layers.size()) {
    const Layer<B>& next = model.layers[static_cast<size_t>(index) + 1];
    b.upcoming({next.q.get(), next.k.get(), next.v.get()});
  } else {
    b.upcoming({model.head.get()});
  }
  add_branch(b, model, gated, *layer.down, layer.post_mlp_norm, w);
}

}  // namespace fidelio
