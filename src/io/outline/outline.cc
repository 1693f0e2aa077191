#include "io/outline/outline.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "arch/model_weights.h"
#include "core/foreign/json.h"
#include "io/hf_config.h"
#include "io/unserved/unserved.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class OutlineTensors final : public TensorFiles {
 public:
  OutlineTensors(const ModelConfig& c, DType dtype) : dtype_(dtype) {
    for (LinearId id : linears_of(c)) {
      shapes_[weight_name(id)] = shape_of(c, id);
      if (has_bias(c, id.role)) shapes_[bias_name(id)] = Shape{shape_of(c, id)[0]};
    }
    for (const auto& [layer, which] : norms_of(c))
      shapes_[norm_name(c, layer, which)] = Shape{norm_size(c, layer, which)};
    for (const auto& [name, shape] : tensors_of_routers(c)) shapes_[name] = shape;
    for (const LinearId id : fixed_linears_of(c)) shapes_[weight_name(id)] = shape_of(c, id);
    for (const int layer : delta_layers(c))
      for (const DeltaTensor which : kDeltaTensors) shapes_[delta_name(layer, which)] = delta_shape(c, which);
  }

  bool contains(std::string_view name) const override { return shapes_.contains(std::string(name)); }
  OwnedTensor get(std::string_view name) const override {
    const auto found = shapes_.find(std::string(name));
    check(found != shapes_.end(), "config.json describes no tensor {}", name);
    return OwnedTensor::allocate(dtype_, found->second);  // Its pages are untouched, so they take no memory.
  }
  OwnedTensor get(std::string_view name, DType dtype, const Shape& shape) const override {
    OwnedTensor tensor = get(name);
    check(tensor.view.dtype == dtype && tensor.view.shape == shape, "config.json describes {} otherwise", name);
    return tensor;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, shape] : shapes_) all.push_back(name);
    return all;
  }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> files() const override { return {}; }
  int64_t file_bytes() const override {
    int64_t bytes = 0;
    for (const auto& [name, shape] : shapes_) bytes += shape.elements() * size_of(dtype_);
    return bytes;
  }
  void drop(const Tensor&) const override {}
  Hashes tensor_hashes() const override { return {}; }  // There are no weights.

 private:
  DType dtype_;
  std::map<std::string, Shape> shapes_;
  std::map<std::string, std::string> metadata_;
};

// The outer object of a model that sees images may name the type for all of it.
std::string named_type(const TextFiles& texts) {
  const json whole = parse_json(texts.require("config.json"), texts.path("config.json"));
  for (const json& config : {text_config(texts), whole})
    for (const char* key : {"dtype", "torch_dtype"})
      if (const auto found = config.find(key); found != config.end() && found->is_string())
        return found->get<std::string>();
  return "";
}

DType dtype_named(const std::string& name) {
  if (name == "float32") return DType::f32;
  return name == "float16" ? DType::f16 : DType::bf16;
}

}  // namespace

bool has_config_alone(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored) || !fs::exists(path + "/config.json", ignored)) return false;
  for (const auto& item : fs::directory_iterator(path, ignored))
    if (const std::string ending = item.path().extension().string(); ending == ".safetensors" || ending == ".gguf")
      return false;
  return about_folder(path).empty();
}

ModelSource open_outline(const std::string& folder) {
  ModelSource source{folder, nullptr, {}, "", {}};
  const json config = text_config(source.texts);
  for (const char* key : {"quantization_config", "quantization"})
    check(!config.contains(key),
          "{}: its weights are not there, and its key \"{}\" says that they are quantised: how large they are, their "
          "files alone tell. Give the config.json of the model that was quantised, or download the weights",
          source.texts.path("config.json"), key);
  const std::string type = named_type(source.texts);
  source.tensors = std::make_shared<const OutlineTensors>(load_config(source.texts), dtype_named(type));
  if (type != "float32" && type != "float16" && type != "bfloat16")
    source.notes.push_back("config.json names no type of the weights that is known here; sizes are those of BF16");
  return source;
}

}  // namespace fidelio
