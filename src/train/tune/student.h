// The Student is the model that is tuned. Every linear is a Matrix and every norm and bias a DenseParameter, in a
// fixed order. Only the parts that are asked for are in memory. Codebooks that linears share (shared_name) belong to
// the model: they are held from the first linear on that has one, and only steps of the whole model move them,
// because every layer reads them.
#pragma once
#include <map>
#include <set>

#include "train/matrix.h"
#include "train/network.h"

namespace fidelio::train {

// TunedWeights is what a tuner returns: linears as a checkpoint stores them, and norms and biases by their names in
// the file.
struct TunedWeights {
  std::map<LinearId, LinearWeight> linears;
  std::map<std::string, OwnedTensor> tensors;
};

template <class D>
class Student {
 public:
  using Real = typename D::Real;

  // `source` is the checkpoint that `model` was quantised from, which says where codes start in their cells. With
  // `outer`, the embedding and the head are tuned too; with `dense`, norms, biases and dense matrices are. `most` is
  // how far from the middle of its cell a code may start. Nothing is loaded until load() is called.
  Student(D& device, const Checkpoint& model, const Checkpoint& source, bool outer, bool dense, float most)
      : device_(device),
        model_(model),
        source_(source),
        config_(model.config()),
        outer_(outer),
        dense_(dense),
        most_(most) {
    view_.layers = layer_views<Real>(config_);
  }

  // Loads a layer, or with -1 what is outside the layers, into the device's memory: as `tuned` has it, or from the
  // model's file. release() frees it.
  void load(int layer, const TunedWeights* tuned = nullptr) {
    for (LinearId id : linears_of(config_)) {
      if (id.layer != layer) continue;
      const LinearWeight stored = model_.linear(id);
      const LinearWeight& weight = tuned == nullptr ? stored : tuned->linears.at(id);
      auto& matrix =
          matrices_
              .try_emplace(id, device_, to_string(id), weight, decode(source_.linear(id)), most_, shared_book(weight))
              .first->second;
      slot(view_, id) = matrix.view();
      if (!is_tuned(id, matrix)) slot(view_, id).weight_gradient = nullptr;
      if (stored.bias) {
        DenseParameter<D>& bias = add(bias_name(id), tuned, 0);
        slot(view_, id).bias = bias.weight(), slot(view_, id).bias_gradient = dense_ ? bias.gradient() : nullptr;
        vectors_of_[layer].push_back(&bias);
      }
      model_.drop(id), source_.drop(id);
    }
    for (auto [of, which] : norms_of(config_)) {
      if ((which == Norm::final ? -1 : of) != layer) continue;
      const bool less_one = config_.blocks.norm_plus_one && which != Norm::delta;  // as Checkpoint::norm has it
      DenseParameter<D>& norm = add(norm_name(config_, of, which), tuned, less_one ? 1.0f : 0.0f);
      slot(view_, of, which) = {norm.weight(), dense_ ? norm.gradient() : nullptr};
      vectors_of_[layer].push_back(&norm);
    }
    fixed_.load(device_, model_, layer, view_);
    if (layer < 0 && config_.tie_embeddings) view_.head = view_.embedding;
  }
  void release(int layer) {
    std::erase_if(matrices_, [&](const auto& m) { return m.first.layer == layer; });
    for (DenseParameter<D>* vector : vectors_of_[layer]) vectors_.erase(std::string(vector->parameter().name));
    vectors_of_.erase(layer);
    fixed_.release(layer);
  }

  const NetworkView<Real>& view() const { return view_; }

  // Calls f with the parameters of a layer, or with -1 of what is outside the layers. The second function covers the
  // whole model, with each shared codebook once. The order is fixed.
  void parameters(int layer, const std::function<void(Parameter<D>&)>& f) {
    for (auto& [id, matrix] : matrices_)
      if (id.layer == layer && is_tuned(id, matrix)) matrix.parameters(f);
    if (!dense_) return;
    for (DenseParameter<D>* vector : vectors_of_[layer]) f(vector->parameter());
  }
  void parameters(const std::function<void(Parameter<D>&)>& f) {
    for (auto& [name, book] : books_)
      if (book->trained()) f(book->parameter());
    for (int layer = -1; layer < config_.L; ++layer) parameters(layer, f);
  }
  // Calls f(name, values, count) with what does not follow from the parameters of a layer (vector_matrix.h).
  void choices(int layer, const std::function<void(const std::string&, Real*, int64_t)>& f) {
    for (auto& [id, matrix] : matrices_)
      if (id.layer == layer && is_tuned(id, matrix)) matrix.choices(f);
  }
  void choices(const std::function<void(const std::string&, Real*, int64_t)>& f) {
    for (int layer = -1; layer < config_.L; ++layer) choices(layer, f);
  }
  // Calls f(values, count) with the gradients that passes add to, in a fixed order. backward() computes all others
  // from these.
  void pass_gradients(int layer, const std::function<void(Real*, int64_t)>& f) {
    for (auto& [id, matrix] : matrices_)
      if (id.layer == layer && is_tuned(id, matrix))
        f(matrix.view().weight_gradient, matrix.view().out * matrix.view().in);
    if (!dense_) return;
    for (DenseParameter<D>* vector : vectors_of_[layer]) f(vector->gradient(), vector->parameter().n);
  }
  void zero_gradients(int layer) {
    parameters(layer, [&](Parameter<D>& p) { device_.zero(p.gradient.get(), p.n); });
  }
  void zero_gradients() {
    parameters([&](Parameter<D>& p) { device_.zero(p.gradient.get(), p.n); });
  }
  // Computes the values that products use from the parameters. If not `choose`, the codes of vectors stay as they
  // are.
  void decode(int layer, bool choose = true) {
    for (auto& [id, matrix] : matrices_)
      if (id.layer == layer) matrix.decode(choose);
    for (DenseParameter<D>* vector : vectors_of_[layer]) vector->decode(device_);
  }
  void decode(bool choose = true) {
    for (auto& [name, book] : books_) book->decode();
    for (int layer = -1; layer < config_.L; ++layer) decode(layer, choose);
  }
  // Computes the gradients of a layer's own parameters. For the whole model, every matrix also adds to the codebook
  // that it shares.
  void backward(int layer) { backward(layer, false); }
  void backward() {
    for (int layer = -1; layer < config_.L; ++layer) backward(layer, true);
  }

  // Writes a loaded layer, or with -1 what is outside the layers, as a checkpoint stores it.
  void encode(int layer, TunedWeights& to) {
    for (const auto& [id, matrix] : matrices_)
      if (id.layer == layer) to.linears.insert_or_assign(id, matrix.encode());
    for (DenseParameter<D>* vector : vectors_of_[layer])
      to.tensors.insert_or_assign(vector->parameter().name, vector->encode(device_));
  }

 private:
  static std::vector<float> decode(const LinearWeight& w) { return fidelio::decode(w); }
  void backward(int layer, bool shared) {
    for (auto& [id, matrix] : matrices_)
      if (id.layer == layer && is_tuned(id, matrix)) matrix.backward(shared);
  }
  // Returns the codebook that a weight shares, or null if it has its own or none. A codebook is not trained if
  // linears read it that must stay as they are.
  std::shared_ptr<Codebook<D>> shared_book(const LinearWeight& weight) {
    const std::string name = shared_name(weight.spec);
    if (name.empty()) return nullptr;
    std::shared_ptr<Codebook<D>>& book = books_[name];
    if (book) return book;
    bool trained = true;
    for (LinearId id : linears_of(config_))
      if (id.layer < 0 && !outer_ && shared_name(model_.format(id)) == name) trained = false;
    return book = std::make_shared<Codebook<D>>(device_, name, weight, trained);
  }
  bool is_tuned(LinearId id, const Matrix<D>& matrix) const {
    return (id.layer >= 0 || outer_) && (dense_ || !matrix.is_dense());
  }
  DenseParameter<D>& add(const std::string& name, const TunedWeights* tuned, float added) {
    const OwnedTensor t = tuned == nullptr ? model_.tensor(name) : tuned->tensors.at(name);
    std::vector<float> values(static_cast<size_t>(t.view.elements()));
    convert_to_float(t.view, values);
    return vectors_.try_emplace(name, device_, name, t.view.dtype, t.view.shape, values, added).first->second;
  }

  D& device_;
  const Checkpoint &model_, &source_;
  ModelConfig config_;
  bool outer_, dense_;
  float most_;
  std::map<std::string, std::shared_ptr<Codebook<D>>> books_;  // the shared ones, by name in the file
  std::map<LinearId, Matrix<D>> matrices_;
  std::map<std::string, DenseParameter<D>> vectors_;
  std::map<int, std::vector<DenseParameter<D>*>> vectors_of_;  // by layer; -1 for what is outside
  Fixed<D> fixed_;
  NetworkView<Real> view_;
};

}  // namespace fidelio::train
