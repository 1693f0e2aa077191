// The weights of a model as this room's forward reads them: where every linear and norm of a NetworkView stands, and a
// model of dense values (a teacher; a student of studies, whose every value has a gradient).
#pragma once
#include <map>
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

// A tensor of dense values, by its name in the file; gradient is null if it is frozen.
template <class D>
struct DenseTensor {
  std::string name;
  int64_t n = 0;
  std::shared_ptr<typename D::Real[]> value, gradient;
};

template <class D>
class DenseNetwork {
 public:
  using Real = typename D::Real;

  // Every weight decoded, every value with a gradient if `gradients`.
  DenseNetwork(D& device, const Checkpoint& checkpoint, bool gradients) : device_(device), gradients_(gradients) {
    const ModelConfig& config = checkpoint.config();
    view_.layers.resize(static_cast<size_t>(config.L));
    for (int layer = 0; layer < config.L; ++layer)
      view_.layers[static_cast<size_t>(layer)].attention = attention_sizes(config, layer);
    for (LinearId id : linears_of(config)) {
      const LinearWeight weight = checkpoint.linear(id);
      LinearView<Real>& to = slot(view_, id);
      to.out = weight.out, to.in = weight.in;
      const DenseTensor<D>& w = add(weight_name(id), decode(weight));
      to.weight = w.value.get(), to.weight_gradient = w.gradient.get();
      if (!weight.bias) continue;
      const auto values = weight.bias.as<const float>();
      const DenseTensor<D>& bias = add(bias_name(id), {values.begin(), values.end()});
      to.bias = bias.value.get(), to.bias_gradient = bias.gradient.get();
    }
    for (auto [layer, which] : norms_of(config)) {
      const DenseTensor<D>& w = add(norm_name(config, layer, which), checkpoint.norm(layer, which));
      slot(view_, layer, which) = {w.value.get(), w.gradient.get()};
    }
    if (config.tie_embeddings) view_.head = view_.embedding;
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
    DenseTensor<D> t{std::move(name), n, device_.allocate(n), gradients_ ? device_.allocate(n) : nullptr};
    device_.upload(values, t.value.get());
    return tensors_.emplace_back(std::move(t));
  }

  D& device_;
  bool gradients_;
  NetworkView<Real> view_;
  std::vector<DenseTensor<D>> tensors_;
};

}  // namespace fidelio::train
