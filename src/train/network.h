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
    case Role::down:
      return layer.down;
    case Role::delta_qkv:
      return layer.delta.qkv;
    case Role::delta_z:
      return layer.delta.z;
    case Role::delta_out:
      return layer.delta.out;
    case Role::delta_b:
      return layer.delta.b;
    case Role::delta_a:
      return layer.delta.a;
    default:
      throw Error("tuning has no place for {}", to_string(id));
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
    case Norm::k:
      return layer.k_norm;
    case Norm::delta:
      return layer.delta.norm;
    default:
      throw Error("tuning has no place for a norm that layers here do not have");
  }
}

// Fixed holds the weights of a model that tuning leaves as they are: those of delta nets besides their large linears
// and their norm.
template <class D>
class Fixed {
 public:
  using Real = typename D::Real;

  // Loads those of a layer and puts them into the view. release() frees them.
  void load(D& device, const Checkpoint& checkpoint, int layer, NetworkView<Real>& view) {
    const ModelConfig& config = checkpoint.config();
    if (layer < 0 || !has_delta_net(config, layer)) return;
    const auto loaded = [&](const std::vector<float>& values) {
      const auto& array = of_layer_[layer].emplace_back(device.allocate(static_cast<int64_t>(values.size())));
      device.upload(values, array.get());
      return array.get();
    };
    for (const Role role : {Role::delta_b, Role::delta_a}) {
      const LinearWeight weight = checkpoint.linear({layer, role});
      slot(view, {layer, role}) = {.out = weight.out, .in = weight.in, .weight = loaded(decode(weight))};
    }
    DeltaView<Real>& delta = view.layers[static_cast<size_t>(layer)].delta;
    delta.convolution = loaded(checkpoint.delta(layer, DeltaTensor::convolution));
    delta.log_rate = loaded(checkpoint.delta(layer, DeltaTensor::log_rate));
    delta.step_bias = loaded(checkpoint.delta(layer, DeltaTensor::step_bias));
  }
  void release(int layer) { of_layer_.erase(layer); }

 private:
  std::map<int, std::vector<std::shared_ptr<Real[]>>> of_layer_;
};

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

  // Loads every weight, decoded. Every value that tuning may change has a gradient if `gradients` is true.
  DenseNetwork(D& device, const Checkpoint& checkpoint, bool gradients)
      : DenseNetwork(device, checkpoint, gradients, std::nullopt) {
    for (int layer = -1; layer < config_.L; ++layer) load(layer);
  }
  // Makes the same, but loads nothing; load() does.
  DenseNetwork(D& device, const Checkpoint& checkpoint, bool gradients, std::nullopt_t)
      : device_(device), checkpoint_(checkpoint), config_(checkpoint.config()), gradients_(gradients) {
    view_.layers = layer_views<Real>(config_);
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
    fixed_.load(device_, checkpoint_, layer, view_);
    if (layer < 0 && config_.tie_embeddings) view_.head = view_.embedding;
  }
  void release(int layer) {
    fixed_.release(layer);
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
  Fixed<D> fixed_;
};

}  // namespace fidelio::train
