// This file defines how the forward and backward pass see a model: as views of weights in the memory of a Device. It
// has the one operation that all parts of a layer share, the linear.
#pragma once
#include <vector>

#include "arch/model_config.h"
#include "train/device.h"

namespace fidelio::train {

// A LinearView holds a linear's weight as the operations read it, and where its gradients are added. Null gradients
// mean that it is frozen. The view owns nothing.
template <typename Real>
struct LinearView {
  int64_t out = 0, in = 0;
  const Real *weight = nullptr, *bias = nullptr;
  Real *weight_gradient = nullptr, *bias_gradient = nullptr;
  Real* output_moment = nullptr;  // (out, out): dy^T dy is added here (salience.h), unless it is null
  bool trains() const { return weight_gradient || bias_gradient || output_moment; }
};
template <typename Real>
struct NormView {
  const Real* weight = nullptr;
  Real* gradient = nullptr;
};
// A DeltaView holds a gated delta net. The linears b and a and the last three tensors stay as they are.
template <typename Real>
struct DeltaView {
  LinearView<Real> qkv, z, out, b, a;
  NormView<Real> norm;
  const Real* convolution = nullptr;                     // (channels, kernel)
  const Real *log_rate = nullptr, *step_bias = nullptr;  // (value_heads)
};
template <typename Real>
struct LayerView {
  LinearView<Real> q, k, v, o, gate, up, down;
  NormView<Real> attn, mlp, q_norm, k_norm;  // the last two are null if the model has none
  Mixer mixer = Mixer::attention;
  AttentionSizes attention;  // of a layer with attention
  DeltaView<Real> delta;     // of a layer with a delta net
};
template <typename Real>
struct NetworkView {
  LinearView<Real> embedding, head;  // if tied, both have the same pointers
  std::vector<LayerView<Real>> layers;
  NormView<Real> final;
};

// Throws Error if the forward pass here cannot compute this model, or not on a GPU if `gpu` is true.
void check_known(const ModelConfig& config, bool gpu);
// Returns the sizes of one layer. Without frequencies its heads are not rotated by position.
AttentionSizes attention_sizes(const ModelConfig& config, int layer);
// Returns whether some layer of the model has this mixer.
bool has_mixer(const ModelConfig& config, Mixer mixer);

// Returns views of all layers, with their sizes and without weights.
template <typename Real>
std::vector<LayerView<Real>> layer_views(const ModelConfig& config) {
  std::vector<LayerView<Real>> layers(static_cast<size_t>(config.L));
  for (int layer = 0; layer < config.L; ++layer) {
    LayerView<Real>& view = layers[static_cast<size_t>(layer)];
    view.mixer = kind_of(config, layer).mixer;
    if (view.mixer == Mixer::attention) view.attention = attention_sizes(config, layer);
  }
  return layers;
}

template <class D>
void linear(D& device, const LinearView<typename D::Real>& w, int64_t n, const typename D::Real* x, bool add,
            typename D::Real* y) {
  device.multiply({n, w.out, w.in, x, false, w.weight, true, add ? typename D::Real{1} : typename D::Real{0}, y});
  if (w.bias != nullptr) device.add_bias(w.bias, n, w.out, y);
}

// Computes dx = dy W (or dx += dy W with `add`; nothing if dx is null), and the weight's own gradients.
template <class D>
void linear_backward(D& device, const LinearView<typename D::Real>& w, int64_t n, const typename D::Real* x,
                     const typename D::Real* dy, bool add, typename D::Real* dx) {
  using Real = typename D::Real;
  [[maybe_unused]] const typename D::Held held = device.hold(dy, n * w.out);
  if (dx != nullptr) device.multiply({n, w.in, w.out, dy, false, w.weight, false, add ? Real{1} : Real{0}, dx});
  if (w.weight_gradient != nullptr) device.multiply({w.out, w.in, n, dy, true, x, false, Real{1}, w.weight_gradient});
  if (w.bias_gradient != nullptr) device.sum_rows(dy, n, w.out, w.bias_gradient);
  if (w.output_moment != nullptr) device.multiply({w.out, w.out, n, dy, true, dy, false, Real{1}, w.output_moment});
}

}  // namespace fidelio::train
