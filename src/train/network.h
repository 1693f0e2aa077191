// This file holds the weights of a model as the forward pass of this room reads them. It finds the place of every
// linear and norm in a NetworkView, and has a model of dense values (a teacher, or a student whose every value has a
// gradient, for studies).
#pragma once
#include <map>
#include <optional>
#include <string>

#include "io/checkpoint.h"
#include "train/block.h"

namespace fidelio::train {

template <typename Real>
LinearView<Real>& slot(NetworkView<Real>& net, LinearId id) {
  if (id.role == Role::embedding) return net.embedding;
  if (id.role == Role::head) return net.head;
  LayerView<Real>& layer = net.layers.at(static_cast<size_t>(id.layer));
  switch (id.role) {
    case Role::q:
      return layer.q;
    case Role::k:
      return layer.k;
    case Role::v:
      return layer.v;
    case Role::o:
      return layer.o;
    case Role::gate:
      return layer.gate;
    case Role::up:
      return layer.up;
    default:
      return layer.down;
  }
}

template <typename Real>
NormView<Real>& slot(NetworkView<Real>& net, int index, Norm which) {
  if (which == Norm::final) return net.final;
  LayerView<Real>& layer = net.layers.at(static_cast<size_t>(index));
  switch (which) {
    case Norm::attn:
      return layer.attn;
    case Norm::mlp:
      return layer.mlp;
    case Norm::q:
      return layer.q_norm;
    default:
      return layer.k_norm;
  }
}

// A DenseTensor is a tensor of dense values, by its name in the file. The gradient is null if it is frozen.
template <class D>
struct DenseTensor {
  std::string name;
  int layer = -1;
  int64_t n = 0;
  std::shared_ptr<typename D::Real[]> value, gradient;
};

template <class D>
class DenseNetwork {
 public:
  using Real = typename D::Real;

  // Loads every weight, decoded. Every value has a gradient if `gradients` is true.
  DenseNetwork(D& device, const Checkpoint& checkpoint, bool gradients)
      : DenseNetwork(device, checkpoint, gradients, std::nullopt) {
    for (int layer = -1; layer < config_.L; ++layer) load(layer);
  }
  // Makes the same, but loads nothing; load() does.
  DenseNetwork(D& device, const Checkpoint& checkpoint, bool gradients, std::nullopt_t)
      : device_(device), checkpoint_(checkpoint), config_(checkpoint.config()), gradients_(gradients) {
    view_.layers.resize(static_cast<size_t>(config_.L));
    for (int layer = 0; layer < config_.L; ++layer)
      view_.layers[static_cast<size_t>(layer)].attention = attention_sizes(config_, layer);
  }

  // Loads a layer, or with -1 what is outside the layers. release() frees it.
  void load(int layer) {
    layer_ = layer;
    for (LinearId id : linears_of(config_)) {
      if (id.layer != layer) continue;
      const LinearWeight weight = checkpoint_.linear(id);
      LinearView<Real>& to = slot(view_, id);
      to.out = weight.out, to.in = weight.in;
      const DenseTensor<D>& w = add(weight_name(id), decode(weight));
      to.weight = w.value.get(), to.weight_gradient = w.gradient.get();
      if (!weight.bias) continue;
      const auto values = weight.bias.as<const float>();
      const DenseTensor<D>& bias = add(bias_name(id), {values.begin(), values.end()});
      to.bias = bias.value.get(), to.bias_gradient = bias.gradient.get();
    }
    for (auto [of, which] : norms_of(config_)) {
      if ((which == Norm::final ? -1 : of) != layer) continue;
      const DenseTensor<D>& w = add(norm_name(config_, of, which), checkpoint_.norm(of, which));
      slot(view_, of, which) = {w.value.get(), w.gradient.get()};
    }
    if (layer < 0 && config_.tie_embeddings) view_.head = view_.embedding;
  }
  void release(int layer) {
    std::erase_if(tensors_, [&](const DenseTensor<D>& t) { return t.layer == layer; });
  }

  const NetworkView<Real>& view() const { return view_; }
  const std::vector<DenseTensor<D>>& tensors() const { return tensors_; }
  void zero_gradients() {
    for (const DenseTensor<D>& t : tensors_)
      if (t.gradient) device_.zero(t.gradient.get(), t.n);
  }

 private:
  const DenseTensor<D>& add(std::string name, const std::vector<float>& values) {
    const auto n = static_cast<int64_t>(values.size());
    DenseTensor<D> t{std::move(name), layer_, n, device_.allocate(n), gradients_ ? device_.allocate(n) : nullptr};
    device_.upload(values, t.value.get());
    return tensors_.emplace_back(std::move(t));
  }

  D& device_;
  const Checkpoint& checkpoint_;
  ModelConfig config_;
  bool gradients_;
  int layer_ = -1;  // the layer that is being loaded
  NetworkView<Real> view_;
  std::vector<DenseTensor<D>> tensors_;
};

}  // namespace fidelio::train
