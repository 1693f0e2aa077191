// The transformer, written once. Every backend, mode and use (prefill, decode, verify, perplexity, calibration) runs
// this.
#pragma once
#include "runtime/model.h"
#include "runtime/runner.h"

namespace fidelio {

// The matrices of one step, (rows, columns) of the largest batch.
template <Backend B>
struct Workspace {
  typename B::Matrix x;         // (n, d) the residual stream
  typename B::Matrix q, k, v;   // (n, h e), (n, hk e), (n, hk e)
  typename B::Matrix gate, up;  // (n, f)
  typename B::Matrix logits;    // (logit rows, v)
};

// The two halves of a layer up to the input of their last linear. The stream x is read, not changed.
template <Backend B>
typename B::Acts attention_half(B& b, Layer<B>& layer, int index, float eps, Workspace<B>& w,
                                typename B::KvCache& cache) {
  const auto optional = [](const typename B::Matrix& m) { return m.rows > 0 ? &m : nullptr; };
  const std::pair<const typename B::Linear*, typename B::Matrix*> qkv[] = {
      {layer.q.get(), &w.q}, {layer.k.get(), &w.k}, {layer.v.get(), &w.v}};
  b.upcoming({layer.o.get()});
  b.linear(b.norm(w.x, layer.attn_norm, eps), qkv);
  b.rope_append(w.q, w.k, w.v, optional(layer.q_norm), optional(layer.k_norm), cache, index);
  return b.attend(w.q, cache, index);
}

template <Backend B>
typename B::Acts mlp_half(B& b, Layer<B>& layer, float eps, Workspace<B>& w) {
  const std::pair<const typename B::Linear*, typename B::Matrix*> gate_up[] = {{layer.gate.get(), &w.gate},
                                                                               {layer.up.get(), &w.up}};
  b.upcoming({layer.down.get()});
  b.linear(b.norm(w.x, layer.mlp_norm, eps), gate_up);
  return b.swiglu(w.gate, w.up);
}

// The whole model's layer `index`.
template <Backend B>
void forward_layer(B& b, Model<B>& model, int index, float eps, Workspace<B>& w, typename B::KvCache& cache) {
  Layer<B>& layer = model.layers[static_cast<size_t>(index)];
  const auto attended = attention_half(b, layer, index, eps, w, cache);
  b.upcoming({layer.gate.get(), layer.up.get()});
  b.linear_add(attended, *layer.o, w.x);
  const auto gated = mlp_half(b, layer, eps, w);
  if (static_cast<size_t>(index) + 1 < model.layers.size()) {
    const Layer<B>& next = model.layers[static_cast<size_t>(index) + 1];
    b.upcoming({next.q.get(), next.k.get(), next.v.get()});
  } else {
    b.upcoming({model.head.get()});
  }
  b.linear_add(gated, *layer.down, w.x);
}

}  // namespace fidelio
