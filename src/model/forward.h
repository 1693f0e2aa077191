// The transformer, written once. Every backend, mode and use (prefill, decode, verify, perplexity, calibration) runs this.
#pragma once
#include "model/model.h"
#include "model/runner.h"

namespace fidelio {

// The matrices of one step, (rows, columns) of the largest batch.
template <Backend B>
struct Workspace {
  typename B::Matrix x;         // (n, d) the residual stream
  typename B::Matrix q, k, v;   // (n, h e), (n, hk e), (n, hk e)
  typename B::Matrix gate, up;  // (n, f)
  typename B::Matrix logits;    // (logit rows, v)
};

// `observe(InputId, acts)` sees the input of each linear just before the linear runs.
template <Backend B, typename Observe>
void forward_layer(B& b, Layer<B>& layer, int index, float eps, Workspace<B>& w, typename B::KvCache& cache, Observe&& observe) {
  using Output = std::pair<const typename B::Linear*, typename B::Matrix*>;
  const auto optional = [](const typename B::Matrix& m) { return m.rows > 0 ? &m : nullptr; };

  auto a = b.norm(w.x, layer.attn_norm, eps);
  observe(InputId::attn_in, a);
  const Output qkv[] = {{layer.q.get(), &w.q}, {layer.k.get(), &w.k}, {layer.v.get(), &w.v}};
  b.linear(a, qkv);
  b.rope_append(w.q, w.k, w.v, optional(layer.q_norm), optional(layer.k_norm), cache, index);
  a = b.attend(w.q, cache, index);
  observe(InputId::o_in, a);
  b.linear_add(a, *layer.o, w.x);

  a = b.norm(w.x, layer.mlp_norm, eps);
  observe(InputId::mlp_in, a);
  const Output gate_up[] = {{layer.gate.get(), &w.gate}, {layer.up.get(), &w.up}};
  b.linear(a, gate_up);
  a = b.swiglu(w.gate, w.up);
  observe(InputId::down_in, a);
  b.linear_add(a, *layer.down, w.x);
}

}  // namespace fidelio
