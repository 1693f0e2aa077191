#include "train/state.h"

#include <filesystem>
#include <set>

#include "core/foreign/json.h"
#include "core/hash.h"
#include "io/identity/weights_hash.h"

namespace fidelio::train {
namespace {

OwnedTensor copy_of(const Tensor& view) {
  OwnedTensor t = OwnedTensor::allocate(view.dtype, view.shape);
  std::memcpy(t.view.data, view.data, static_cast<size_t>(view.bytes()));
  return t;
}

// Returns the seal of everything that a state holds. Without it, a damaged number would look like any other.
std::string seal(const std::string& tuner, const std::string& tensors) { return sha256_hex(tuner + tensors); }

}  // namespace

void add_weights(const TunedWeights& weights, std::vector<TensorToWrite>& tensors) {
  std::set<std::string> shared;
  for (const auto& [id, weight] : weights.linears) {
    for (const StoredTensor& t : stored_tensors(weight))
      tensors.push_back(to_write("best." + module_name(id) + t.suffix, copy_of(t.tensor)));
    const OwnedTensor* book = shared_codebook(weight);
    if (const std::string name = shared_name(weight.spec); book && shared.insert(name).second)
      tensors.push_back(to_write("best." + name, copy_of(book->view)));
  }
  for (const auto& [name, tensor] : weights.tensors) tensors.push_back(to_write("best." + name, tensor));
}

TunedWeights load_weights(const Safetensors& file, const Checkpoint& model, int layers) {
  TunedWeights weights;
  const auto copied = [&](const std::string& name, DType dtype, const Shape& shape) {
    return copy_of(file.get("best." + name, dtype, shape).view);
  };
  for (LinearId id : linears_of(model.config())) {
    if (id.layer >= layers) continue;
    const LinearWeight start = model.linear(id);
    if (const auto* dense = std::get_if<Dense>(&start.main)) {
      weights.linears.emplace(id, make_dense(copied(weight_name(id), dense->w.view.dtype, dense->w.view.shape)));
    } else {
      weights.linears.emplace(
          id,
          load_weight(start.spec, start.out, start.in, [&](const std::string& suffix, DType dtype, const Shape& shape) {
            if (suffix == ".bias") return OwnedTensor{};
            const bool shared = start.spec.shared && suffix == ".codebook";
            return copied(shared ? shared_name(start.spec) : module_name(id) + suffix, dtype, shape);
          }));
    }
    if (!start.bias) continue;
    const Tensor bias = model.bias_tensor(id).view;
    weights.tensors.emplace(bias_name(id), copied(bias_name(id), bias.dtype, bias.shape));
  }
  for (auto [layer, which] : norms_of(model.config())) {
    if (layer >= layers && which != Norm::final) continue;
    const std::string name = norm_name(model.config(), layer, which);
    const Tensor norm = model.tensor(name).view;
    weights.tensors.emplace(name, copied(name, norm.dtype, norm.shape));
  }
  return weights;
}

void write_state(const std::string& path, std::vector<TensorToWrite> tensors, const nlohmann::json& about) {
  const std::string tuner = about.dump();
  WeightsHash hash;
  for (const TensorToWrite& t : tensors) hash.add(t);
  write_safetensors(path, tensors, {{"tuner", tuner}, {"sha256", seal(tuner, hash.hex())}});
}

std::string damage_of_state(const std::string& path) {
  if (!std::filesystem::exists(path)) return "";
  try {
    const Safetensors file = Safetensors::open(path);
    const std::string tuner = file.metadata().at("tuner");
    return file.metadata().at("sha256") == seal(tuner, file.weights_sha256()) ? "" : "its SHA-256 differs";
  } catch (const std::exception& e) {
    return e.what();
  }
}

Safetensors open_state(const std::string& path) {
  try {
    return Safetensors::open(path);
  } catch (const Error& e) {
    throw Error("{} is damaged ({}); remove it to begin again", path, e.what());
  }
}

nlohmann::json read_state(const Safetensors& file, const std::string& path, const nlohmann::json& job) {
  const auto found = file.metadata().find("tuner");
  check(found != file.metadata().end(), "{} is not the state of a tuner; remove it", path);
  const auto sealed = file.metadata().find("sha256");
  check(sealed != file.metadata().end(), "{} has no SHA-256, as of an earlier fidelio; remove it to begin again", path);
  check(sealed->second == seal(found->second, file.weights_sha256()),
        "{} is damaged (its SHA-256 differs); remove it to begin again", path);
  nlohmann::json about = parse_json(found->second, path);
  check(about.is_object() && about.contains("job") && about.contains("step"), "{} is damaged; remove it to begin again",
        path);
  for (const auto& [name, value] : job.items())
    check(about["job"].contains(name) && about["job"][name] == value,
          "{} belongs to another run: its {} is {}, this one's {}; remove it to begin again", path, name,
          about["job"].value(name, nlohmann::json()).dump(), value.dump());
  return about;
}

}  // namespace fidelio::train
