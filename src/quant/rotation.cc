#include "quant/rotation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/hadamard.h"
#include "core/rng.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"

namespace fidelio {
namespace {

// Beside provides norms and biases by name; the other files are the original's.
class Beside : public TensorFiles {
 public:
  Beside(std::shared_ptr<const TensorFiles> original, std::map<std::string, OwnedTensor, std::less<>> tensors)
      : original_(std::move(original)), tensors_(std::move(tensors)) {}

  bool contains(std::string_view name) const override { return tensors_.contains(name); }
  OwnedTensor get(std::string_view name) const override {
    const auto found = tensors_.find(name);
    check(found != tensors_.end(), "a rotated model has no tensor {} of its own", name);
    return found->second;
  }
  OwnedTensor get(std::string_view name, DType dtype, const Shape& shape) const override {
    OwnedTensor tensor = get(name);
    check(tensor.view.dtype == dtype && tensor.view.shape == shape, "{} has shape {}, expected {}", name,
          to_string(tensor.view.shape), to_string(shape));
    return tensor;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  const std::map<std::string, std::string>& metadata() const override { return none_; }
  std::vector<std::string> files() const override { return original_->files(); }
  int64_t file_bytes() const override { return original_->file_bytes(); }
  void drop(const Tensor&) const override {}
  Hashes tensor_hashes() const override { return original_->tensor_hashes(); }

 private:
  std::shared_ptr<const TensorFiles> original_;
  std::map<std::string, OwnedTensor, std::less<>> tensors_;
  std::map<std::string, std::string> none_;
};

OwnedTensor f32_tensor(const Shape& shape, std::span<const double> values) {
  OwnedTensor tensor = OwnedTensor::allocate(DType::f32, shape);
  std::transform(values.begin(), values.end(), tensor.as<float>().begin(),
                 [](double value) { return static_cast<float>(value); });
  return tensor;
}

// A Rotation computes the transformed weights of a model.
class Rotation {
 public:
  Rotation(Checkpoint original, uint64_t seed)
      : original_(std::move(original)),
        stream_(hadamard_for(config().d)),
        head_(hadamard_for(config().e)),
        heads_(hadamard_for(config().h, config().e)),
        gated_(hadamard_for(config().f)) {
    Rng rng(seed);
    for (int64_t i = 0; i < config().d; ++i) signs_.push_back(rng.next() % 2 == 0 ? 1 : -1);
  }

  const Checkpoint& original() const { return original_; }
  const ModelConfig& config() const { return original_.config(); }

  LinearWeight linear(LinearId id) const {
    const LinearId from = id.role == Role::head && config().tie_embeddings ? LinearId{-1, Role::embedding} : id;
    const LinearWeight weight = original_.linear(from);
    std::vector<double> values(static_cast<size_t>(weight.out * weight.in));
    std::vector<float> row(static_cast<size_t>(weight.in));
    const std::vector<float> norm = norm_before(id);
    for (int64_t i = 0; i < weight.out; ++i) {
      decode_row(weight, i, row);
      const std::span<double> to = std::span(values).subspan(static_cast<size_t>(i * weight.in), row.size());
      for (size_t j = 0; j < row.size(); ++j) to[j] = double{row[j]} * (norm.empty() ? 1.0 : double{norm[j]});
      turn_input(id.role, to);
    }
    original_.drop(from);
    if (turns_output(id.role)) {
      std::vector<double> column(static_cast<size_t>(weight.out));
      for (int64_t j = 0; j < weight.in; ++j) {
        for (int64_t i = 0; i < weight.out; ++i) column[i] = values[i * weight.in + j];
        turn_output(id.role, column);
        for (int64_t i = 0; i < weight.out; ++i) values[i * weight.in + j] = column[i];
      }
    }
    return make_dense(f32_tensor({weight.out, weight.in}, values));
  }

  OwnedTensor bias(LinearId id) const {
    const OwnedTensor stored = original_.linear(id).bias;
    std::vector<double> values(stored.as<float>().begin(), stored.as<float>().end());
    if (turns_output(id.role)) turn_output(id.role, values);
    return f32_tensor({static_cast<int64_t>(values.size())}, values);
  }

 private:
  // Returns the weights of the norm that a linear's input has passed. They are empty for o, down and the embedding.
  std::vector<float> norm_before(LinearId id) const {
    switch (id.role) {
      case Role::q:
      case Role::k:
      case Role::v:
        return original_.norm(id.layer, Norm::attn);
      case Role::gate:
      case Role::up:
        return original_.norm(id.layer, Norm::mlp);
      case Role::head:
        return original_.norm(-1, Norm::final);
      default:
        return {};
    }
  }
  void turn_stream(std::span<double> values) const {
    for (size_t i = 0; i < values.size(); ++i) values[i] *= signs_[i];
    turn(stream_, values);
  }
  void turn_heads(std::span<double> values) const {
    for (size_t first = 0; first < values.size(); first += static_cast<size_t>(config().e))
      turn(head_, values.subspan(first, static_cast<size_t>(config().e)));
  }
  void turn_input(Role role, std::span<double> row) const {
    if (role == Role::o)
      turn_heads(row), turn(heads_, row);
    else if (role == Role::down)
      turn(gated_, row);
    else
      turn_stream(row);
  }
  static bool turns_output(Role role) { return role == Role::v || role == Role::o || role == Role::down; }
  void turn_output(Role role, std::span<double> column) const {
    role == Role::v ? turn_heads(column) : turn_stream(column);
  }

  Checkpoint original_;
  Hadamard stream_, head_, heads_, gated_;
  std::vector<double> signs_;
};

}  // namespace

void check_can_rotate(const ModelConfig& c) {
  check(!c.rotated, "the model is rotated already: leave out --rotate");
  const auto only = [&](bool known, const char* what) {
    check(known, "{} cannot be rotated: {} is not known here; leave out --rotate", name_of(c.architecture), what);
  };
  only(c.experts == 0, "a mixture of experts");
  only(delta_layers(c).empty(), "a gated delta net");
  only(!c.blocks.attention_gate, "a gate on attention's output");
  check(c.blocks.norm_before && !c.blocks.norm_after,
        "{} cannot be rotated: it normalises what its blocks add to the stream, weight by weight; leave out --rotate",
        name_of(c.architecture));
}

ModelSource open_rotated(const std::string& path, uint64_t seed) {
  ModelSource source = open_model_source(path);
  ModelSource rotated{source.texts, nullptr, {}, source.quantised_by, {}};
  const auto files = source.tensors;
  Checkpoint original = Checkpoint::open(std::move(source));
  check_can_rotate(original.config());
  const auto rotation = std::make_shared<const Rotation>(std::move(original), seed);
  const ModelConfig& c = rotation->config();

  nlohmann::json config = text_config(rotated.texts);
  config["tie_word_embeddings"] = false;
  config["quantization_config"] = {{"quant_method", "fidelio"}, {"rotation", "hadamard"}};
  config.erase("fidelio");  // here an export describes its own weights
  rotated.texts.put("config.json", config.dump(2));

  std::map<std::string, OwnedTensor, std::less<>> beside;
  for (const auto& [layer, which] : norms_of(c)) {
    const bool of_stream = which != Norm::q && which != Norm::k;
    const std::string name = norm_name(c, layer, which);
    beside[name] = of_stream ? f32_tensor({c.d}, std::vector<double>(static_cast<size_t>(c.d), 1.0))
                             : rotation->original().tensor(name);
  }
  const ModelConfig untied = load_config(rotated.texts);
  for (LinearId id : linears_of(untied)) {
    if (has_bias(c, id.role)) beside[bias_name(id)] = rotation->bias(id);
    rotated.linears[id] = {{.kind = Kind::f32, .bits = 32}, [rotation, id] { return rotation->linear(id); }};
  }
  rotated.tensors = std::make_shared<const Beside>(files, std::move(beside));
  return rotated;
}

}  // namespace fidelio
