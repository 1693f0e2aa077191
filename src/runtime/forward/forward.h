// The transformer, written once. Every backend, mode and use (prefill, decode, verify, perplexity, calibration) runs
// this.
#pragma once
#include "runtime/forward/experts.h"
#include "runtime/runner.h"

namespace fidelio {

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

// Logits of what the final norm gives.
template <Backend B>
void multiply_head(B& b, Model<B>& model, typename B::Acts acts, typename B::Matrix& logits) {
  ShortHead<B>& few = model.short_head;
  const std::pair<const typename B::Linear*, typename B::Matrix*> head[] = {
      {&model.head_of_step(), model.reads_short_head ? &few.logits : &logits}};
  b.linear(acts, head);
  if (model.reads_short_head) b.spread(few.logits, few.tokens, acts.rows, logits);
}

// The whole model's layer `index`.
template <Backend B>
void forward_layer(B& b, Model<B>& model, int index, Workspace<B>& w, typename B::KvCache& cache) {
  Layer<B>& layer = model.layers[static_cast<size_t>(index)];
  const auto attended = attention_half(b, model, index, w, cache);
  if (layer.experts.empty()) b.upcoming({layer.gate.get(), layer.up.get()});
  add_branch(b, model, attended, *layer.o, layer.post_attn_norm, w);
  if (!layer.experts.empty()) return add_experts(b, model, index, w);
  const auto gated = mlp_half(b, model, index, w);
  if (static_cast<size_t>(index) + 1 < model.layers.size()) {
    const Layer<B>& next = model.layers[static_cast<size_t>(index) + 1];
    b.upcoming({next.q.get(), next.k.get(), next.v.get()});
  } else {
    b.upcoming({&model.head_of_step()});
  }
  add_branch(b, model, gated, *layer.down, layer.post_mlp_norm, w);
}

}  // namespace fidelio
