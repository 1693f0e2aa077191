#include "io/left_out.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "arch/weight_names.h"
#include "core/foreign/units.h"
#include "io/checkpoint.h"
#include "io/model_source.h"
#include "io/rows/unstacked.h"

namespace fidelio {
namespace {

std::set<std::string> names_of(const ModelConfig& config, const TensorFiles& files) {
  std::set<std::string> names;
  for (LinearId id : linears_of(config)) {
    names.insert(stored_name(files, weight_name(id)));
    for (const FusedName& stacked : {fused_name(config, id), fused_bias_name(config, id)})
      if (const FusedName fused = unstacked_name(files, id, stacked, config.experts); !fused.weight.empty())
        names.insert(stored_name(files, fused.weight));
    if (has_bias(config, id.role)) names.insert(stored_name(files, bias_name(id)));
  }
  for (const auto& [layer, norm] : norms_of(config)) names.insert(stored_name(files, norm_name(config, layer, norm)));
  for (const auto& [name, shape] : tensors_of_routers(config)) names.insert(stored_name(files, name));
  for (const LinearId id : kept_linears_of(config)) {
    names.insert(stored_name(files, weight_name(id)));
    names.insert(stored_name(files, fused_name(config, id).weight));
  }
  for (const auto& [layer, norm] : predictor_norms_of(config))
    names.insert(stored_name(files, norm_name(config, layer, norm)));
  if (config.predictor && has_experts(config, kPredictorLayer))
    names.insert(stored_name(files, router_name(config, kPredictorLayer)));
  for (const int layer : delta_layers(config))
    for (const DeltaTensor which : kDeltaTensors) names.insert(stored_name(files, delta_name(layer, which)));
  return names;
}

// GPTQ's writers give every linear a bias, which is zero where the model has none.
bool is_zero(const TensorFiles& files, const std::string& name) {
  const OwnedTensor bias = files.get(name);
  const std::span bytes(static_cast<const std::byte*>(bias.view.data), static_cast<size_t>(bias.view.bytes()));
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Returns true if a name belongs to one of the model's layers: "model.layers." and a number below L.
bool is_inside(std::string_view name, std::string_view layers, int L) {
  if (!name.starts_with(layers)) return false;
  const char *begin = name.data() + layers.size(), *end = name.data() + name.size();
  int layer = -1;
  const auto [rest, error] = std::from_chars(begin, end, layer);
  return error == std::errc() && rest != end && *rest == '.' && layer >= 0 && layer < L;
}

// A Part of a model is the tensors whose names begin so.
struct Part {
  std::vector<std::string_view> begins;
  std::string_view what;
};
const Part kParts[] = {{{"model.visual.", "visual.", "model.vision_tower.", "vision_tower.",
                         "model.multi_modal_projector.", "multi_modal_projector.", "model.embed_vision."},
                        "sees images"},
                       {{"model.audio_tower.", "model.embed_audio."}, "hears"},
                       {{"mtp.", "model.mtp."}, "predicts further tokens (mtp)"}};

void note_parts(const ModelConfig& config, const TensorFiles& files, std::vector<std::string>& notes) {
  for (const Part& part : kParts) {
    if (config.predictor && part.begins.front() == "mtp.") continue;  // drafts are made by it
    int64_t bytes = 0;
    for (const std::string& name : files.names())
      if (std::ranges::any_of(part.begins, [&](std::string_view begin) { return name.starts_with(begin); }))
        bytes += files.get(name).view.bytes();
    if (bytes > 0)
      notes.push_back(
          fmt::format("the part that {} ({}) is left out: text is the same without it", part.what, bytes_text(bytes)));
  }
}

// GLM's files have the layers that predict further tokens behind the model's own.
void note_layers_behind(const ModelConfig& config, const TensorFiles& files, std::vector<std::string>& notes) {
  if (config.architecture != Architecture::glm4_moe) return;
  const std::string layers = stored_name(files, "model.layers.");
  int64_t bytes = 0;
  for (const std::string& name : files.names())
    if (name.starts_with(layers) && !is_inside(name, layers, config.L)) bytes += files.get(name).view.bytes();
  if (bytes > 0)
    notes.push_back(
        fmt::format("the part that predicts further tokens (nextn) ({}) is left out: text is the same without it",
                    bytes_text(bytes)));
}

}  // namespace

bool has_predictor(const ModelConfig& config, const TensorFiles& files, const std::function<bool(LinearId)>& is_known) {
  if (config.delta.value_heads == 0) return false;  // other families have none that is known here
  ModelConfig with = config;
  with.predictor = true;
  const auto there = [&](const std::string& name) { return files.contains(stored_name(files, name)); };
  return std::ranges::all_of(predictor_linears_of(with),
                             [&](LinearId id) {
                               return is_known(id) || there(weight_name(id)) || there(fused_name(with, id).weight);
                             }) &&
         std::ranges::all_of(predictor_norms_of(with),
                             [&](const auto& norm) { return there(norm_name(with, norm.first, norm.second)); }) &&
         (!has_experts(with, kPredictorLayer) || there(router_name(with, kPredictorLayer)));
}

std::vector<std::string> left_out(const ModelConfig& config, const TensorFiles& files) {
  std::vector<std::string> notes;
  const std::set<std::string> read = names_of(config, files);
  const std::string layers = stored_name(files, "model.layers.");
  std::vector<std::string> left;
  for (const std::string& name : files.names()) {
    const bool weight = name.ends_with(".weight"), bias = name.ends_with(".bias");
    if ((weight || bias) && is_inside(name, layers, config.L) && !read.contains(name) &&
        !(bias && is_zero(files, name)))
      left.push_back(name);
  }
  if (!left.empty())
    notes.push_back(
        fmt::format("{} tensors are no part of the model that its config.json describes and are left out, as by "
                    "transformers: {}{}",
                    left.size(), left.front(), left.size() > 1 ? ", .." : ""));
  note_parts(config, files, notes);
  note_layers_behind(config, files, notes);
  return notes;
}

}  // namespace fidelio
