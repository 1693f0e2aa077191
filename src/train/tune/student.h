// The model that is tuned: every linear a Matrix, every norm and bias a DenseParameter, in one fixed order.
#pragma once
#include <map>
#include <set>

#include "train/matrix.h"
#include "train/network.h"

namespace fidelio::train {

// What a tuner gives back: linears as a checkpoint stores them, and norms and biases by their names in the file.
struct TunedWeights {
  std::map<LinearId, LinearWeight> linears;
  std::map<std::string, OwnedTensor> tensors;
};

template <class D>
class Student {
 public:
  using Real = typename D::Real;

  // `source`: the checkpoint that `model` was quantised from, which says where codes start in their cells. `outer`: the
  // embedding and the head are tuned too. `most`: how far from the middle of its cell a code starts.
  Student(D& device, const Checkpoint& model, const Checkpoint& source, bool outer, float most)
      : device_(device), config_(model.config()), outer_(outer) {
    view_.layers.resize(static_cast<size_t>(config_.L));
    for (int layer = 0; layer < config_.L; ++layer)
      view_.layers[static_cast<size_t>(layer)].attention = attention_sizes(config_, layer);
    for (LinearId id : linears_of(config_)) {
      const LinearWeight weight = model.linear(id);
      auto& matrix =
          matrices_.try_emplace(id, device, to_string(id), weight, decode(source.linear(id)), most).first->second;
      slot(view_, id) = matrix.view();
      if (weight.bias) {
        DenseParameter<D>& bias = add(bias_name(id), model);
        slot(view_, id).bias = bias.weight(), slot(view_, id).bias_gradient = bias.gradient();
        vectors_of_[id.layer].push_back(&bias);
      }
      model.drop(id), source.drop(id);
    }
    for (auto [layer, which] : norms_of(config_)) {
      DenseParameter<D>& norm = add(norm_name(config_, layer, which), model);
      slot(view_, layer, which) = {norm.weight(), norm.gradient()};
      vectors_of_[which == Norm::final ? -1 : layer].push_back(&norm);
    }
    if (config_.tie_embeddings) view_.head = view_.embedding;
    if (!outer) view_.embedding.weight_gradient = nullptr, view_.head.weight_gradient = nullptr;
  }

  const NetworkView<Real>& view() const { return view_; }

  // The parameters of a layer, or (-1) of what is outside the layers; all in a fixed order.
  void parameters(int layer, const std::function<void(Parameter<D>&)>& f) {
    for (auto& [id, matrix] : matrices_)
      if (id.layer == layer && (layer >= 0 || outer_)) matrix.parameters(f);
    if (layer < 0 && !outer_) return f(vectors_.at(norm_name(config_, -1, Norm::final)).parameter());
    for (DenseParameter<D>* vector : vectors_of_[layer]) f(vector->parameter());
  }
  void parameters(const std::function<void(Parameter<D>&)>& f) {
    for (int layer = -1; layer < config_.L; ++layer) parameters(layer, f);
  }
  void zero_gradients(int layer) {
    parameters(layer, [&](Parameter<D>& p) { device_.zero(p.gradient.get(), p.n); });
  }
  void decode(int layer) {
    for (auto& [id, matrix] : matrices_)
      if (id.layer == layer) matrix.decode();
    for (DenseParameter<D>* vector : vectors_of_[layer]) vector->decode(device_);
  }
  void backward(int layer) {
    for (auto& [id, matrix] : matrices_)
      if (id.layer == layer && (layer >= 0 || outer_)) matrix.backward();
  }

  TunedWeights encode() const {
    TunedWeights tuned;
    for (const auto& [id, matrix] : matrices_) tuned.linears.emplace(id, matrix.encode());
    for (const auto& [name, vector] : vectors_) tuned.tensors.emplace(name, vector.encode(device_));
    return tuned;
  }

 private:
  static std::vector<float> decode(const LinearWeight& w) { return fidelio::decode(w); }
  DenseParameter<D>& add(const std::string& name, const Checkpoint& model) {
    const OwnedTensor t = model.tensor(name);
    std::vector<float> values(static_cast<size_t>(t.view.elements()));
    convert_to_float(t.view, values);
    return vectors_.try_emplace(name, device_, name, t.view.dtype, t.view.shape, values).first->second;
  }

  D& device_;
  ModelConfig config_;
  bool outer_;
  std::map<LinearId, Matrix<D>> matrices_;
  std::map<std::string, DenseParameter<D>> vectors_;
  std::map<int, std::vector<DenseParameter<D>*>> vectors_of_;  // by layer, -1: outside
  NetworkView<Real> view_;
};

}  // namespace fidelio::train
