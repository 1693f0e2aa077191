#include "io/quantised/source.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "io/quantised/bitsandbytes.h"
#include "io/quantised/floats.h"
#include "io/quantised/mxfp4.h"
#include "io/quantised/packed.h"

namespace fidelio::quantised {
namespace {

using nlohmann::json;

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Some methods have rotations beside the codes (QuIP, SpinQuant). Rotations of weights are already in the stored
// weights; those of activations would have to be computed while the model runs, which is not supported.
void check_transforms(const json& config, const std::string& where) {
  const json transforms = config.value("transform_config", json());
  if (!transforms.is_object()) return;
  const json groups = transforms.value("config_groups", json());
  for (const auto& [name, group] : groups.items()) {
    const json applied = group.is_object() ? group.value("apply", json()) : json();
    for (const json& apply : applied) {
      const std::string location = apply.is_object() ? text_of(apply, "location") : "";
      check(location == "weight_input" || location == "weight_output",
            "{}: quantization_config: \"transform_config\": expected transforms of weights alone (weight_input, "
            "weight_output), got {} at {}",
            where, foreign(name), foreign(apply.dump()));
    }
  }
}

// Returns how GPTQ or AWQ laid out the codes: under the key that each method had first, or under "format", as
// transformers 5 calls it.
std::string layout_of(const json& config, const char* key, const char* otherwise) {
  for (const char* name : {key, "format"})
    if (const std::string layout = text_of(config, name); !layout.empty()) return lower_case(layout);
  return otherwise;
}

// This says how the modules of a method are found and opened. Opening sets `why` where the weights have to be decoded.
struct Method {
  std::string name;
  std::vector<std::string> suffixes;  // A module with one of these tensors is quantised.
  std::function<ForeignLinear(const TensorFiles&, const Place&, std::string* why)> open;
};

// Returns a linear of integers as the format that holds them.
ForeignLinear integers(std::shared_ptr<const PackedLinear> packed, std::string* why) {
  const FormatSpec format = format_of(*packed, why);
  return {format, [packed = std::move(packed), format] { return read(*packed, format); }};
}

// Returns the weights' part of every group of compressed-tensors that quantises weights.
std::vector<json> quantised_weights(const json& config) {
  std::vector<json> all;
  if (const auto groups = config.find("config_groups"); groups != config.end() && groups->is_object())
    for (const auto& [name, group] : groups->items())
      if (json weights = group.is_object() ? group.value("weights", json()) : json(); weights.is_object())
        all.push_back(std::move(weights));
  return all;
}

std::vector<int> widths_of(const json& config, const std::string& where) {
  std::set<int> widths;
  for (const json& weights : quantised_weights(config)) {
    const json bits = weights.value("num_bits", json());
    const bool floats = text_of(weights, "type") == "float" && (bits == 4 || bits == 8);
    check(
        floats || (bits.is_number_integer() && bits >= 2 && bits <= 8 && text_of(weights, "type") == "int"),
        "{}: quantization_config: the weights of one of its groups are neither integers of 2 to 8 bits nor floats of 4 "
        "or 8, which alone are read here, but {} of {} bits; give the original checkpoint, or one of integers (W4A16, "
        "W8A16)",
        where, foreign(weights.value("type", json()).dump()), foreign(bits.dump()));
    if (!floats) widths.insert(bits.get<int>());
  }
  return {widths.begin(), widths.end()};
}

// Tells whether a configuration quantises no weight. llm-compressor and ModelOpt write such a one where only the cache
// is quantised.
bool keeps_weights(const json& config) {
  const std::string name = text_of(config, "quant_method");
  if (name == "compressed-tensors") return quantised_weights(config).empty();
  return name == "modelopt" && config.contains("kv_cache_scheme") && text_of(config, "quant_algo").empty();
}

void check_not_sparse(const json& config, const std::string& where) {
  const json sparsity = config.value("sparsity_config", json());
  const std::string format = sparsity.is_object() ? text_of(sparsity, "format") : "";
  check(format.empty() || format == "dense",
        "{}: quantization_config: its weights are stored without their zeros (sparsity_config: {}), which is not read "
        "here; expected \"dense\"",
        where, foreign(format));
}

// Converts the keys of earlier writers of AWQ and GPTQ to today's keys.
void use_todays_keys(json& config) {
  const bool awq = config.contains("w_bit") || config.contains("q_group_size");
  if (awq && !config.contains("group_size")) config["group_size"] = config.value("q_group_size", json());
  if (config.value("is_marlin_format", json()) == true) config["checkpoint_format"] = "marlin";
  if (config.contains("quant_method")) return;
  if (awq) config["quant_method"] = "awq";
  if (config.contains("desc_act") || config.contains("checkpoint_format")) config["quant_method"] = "gptq";
}

// GPTQ's first writers and AutoAWQ wrote the configuration to a file of its own.
struct Stated {
  json config;
  std::string file;
};
std::optional<Stated> stated_beside(const TextFiles& texts) {
  for (const char* file : {"quantize_config.json", "quant_config.json"}) {
    const auto text = texts.read(file);
    if (!text) continue;
    json config = parse_json(*text, texts.path(file));
    if (!config.is_object()) continue;
    use_todays_keys(config);
    return Stated{std::move(config), file};
  }
  return std::nullopt;
}

// ModelOpt writes it to a file of its own too, with other keys.
void take_modelopts_file(json& config, TextFiles& texts) {
  constexpr const char* kFile = "hf_quant_config.json";
  const auto text = config.is_object() && !config.contains("quantization_config") ? texts.read(kFile) : std::nullopt;
  if (!text) return;
  const json said = parse_json(*text, texts.path(kFile));
  const json quantisation = said.is_object() ? said.value("quantization", json()) : json();
  if (!quantisation.is_object()) return;
  config["quantization_config"] = {{"quant_method", "modelopt"},
                                   {"quant_algo", quantisation.value("quant_algo", json())},
                                   {"kv_cache_scheme", quantisation.value("kv_cache_quant_algo", json())}};
  texts.put("config.json", config.dump(2));
}

bool has_codes(const TensorFiles& files) {
  return std::ranges::any_of(files.names(), [](const std::string& name) { return name.ends_with(".qweight"); });
}

// Finds every "group_size" of a configuration: the general one, those of compressed-tensors' config_groups, those of
// GPTQ's "dynamic" rules. -1 and null mean the row.
void find_group_sizes(const json& config, std::set<int>& sizes) {
  for (const auto& [key, value] : config.items()) {
    if (key == "group_size" && value.is_number_integer() && value > 0 && value <= std::numeric_limits<int>::max())
      sizes.insert(value.get<int>());
    else if (value.is_object() && key != "input_activations" && key != "output_activations")
      find_group_sizes(value, sizes);
  }
}

// Returns the size of FP8's blocks (rows, columns): 128 x 128 unless the configuration names another.
std::pair<int64_t, int64_t> block_size(const json& config) {
  std::vector<json> named = {config.value("weight_block_size", json())};
  for (const json& weights : quantised_weights(config)) named.push_back(weights.value("block_structure", json()));
  for (const json& size : named)
    if (size.is_array() && size.size() == 2 && size[0].is_number_integer() && size[1].is_number_integer() &&
        size[0] > 0 && size[1] > 0)
      return {size[0].get<int64_t>(), size[1].get<int64_t>()};
  return {128, 128};
}

// These methods keep weights as small floating-point numbers alone.
bool keeps_floats(const std::string& method) {
  return method == "fp8" || method == "fbgemm_fp8" || method == "modelopt";
}

Method method_of(const json& config, const std::string& where) {
  const std::string name = text_of(config, "quant_method");
  std::set<int> found;
  find_group_sizes(config, found);
  const std::vector<int> sizes(found.begin(), found.end());
  if (name == "compressed-tensors") {
    check_transforms(config, where);
    const std::vector<int> widths = widths_of(config, where);
    return {
        name,
        {".weight_packed", ".weight_scale"},
        [widths, sizes, blocks = block_size(config)](const TensorFiles& files, const Place& place, std::string* why) {
          if (holds_floats(files, place.module)) return open_floats(files, place, blocks, why);
          return integers(open_compressed(files, place, widths, sizes), why);
        }};
  }
  if (name == "bitsandbytes") return {name, {kNf4State, kFp4State}, open_bitsandbytes};
  if (keeps_floats(name))
    return {name,
            {".weight_scale", ".weight_scale_inv"},
            [blocks = block_size(config)](const TensorFiles& files, const Place& place, std::string* why) {
              return open_floats(files, place, blocks, why);
            }};
  if (name == "gptq") {
    const std::string format = layout_of(config, "checkpoint_format", "gptq");
    check(format == "gptq" || format == "gptq_v2" || format == "gptq_p",
          "{}: checkpoint_format {} is not supported; supported are gptq, gptq_v2 and gptq_p", where, format);
    return {name, {".qweight"}, [format, sizes](const TensorFiles& files, const Place& place, std::string* why) {
              return integers(open_gptq(files, place, sizes, format == "gptq", format == "gptq_p"), why);
            }};
  }
  const std::string version = layout_of(config, "version", "gemm");
  check(version == "gemm", "{}: AWQ's version {} is not supported; supported is gemm", where, version);
  return {name, {".qweight"}, [sizes](const TensorFiles& files, const Place& place, std::string* why) {
            return integers(open_awq(files, place, sizes), why);
          }};
}

// Finds the module that holds a linear: its own, or one of q, k, v or of gate, up together. The result is empty if the
// linear is not quantised.
Place place_of(const ModelConfig& c, LinearId id, const TensorFiles& files, const std::vector<std::string>& suffixes) {
  const auto has = [&](const std::string& module) {
    for (const std::string& suffix : suffixes)
      if (files.contains(module + suffix)) return true;
    return false;
  };
  const Shape shape = shape_of(c, id);
  const std::string own = stored_name(files, file_module_name(c, id));
  if (has(own)) return {own, 0, shape[0], shape[0], shape[1]};
  if (id.expert >= 0) return {};
  const int64_t q = int64_t{c.h} * c.e, kv = int64_t{c.hk} * c.e;
  const std::string qkv = stored_name(files, fmt::format("model.layers.{}.self_attn.qkv_proj", id.layer)),
                    gate_up = stored_name(files, fmt::format("model.layers.{}.mlp.gate_up_proj", id.layer));
  if (id.role == Role::q && has(qkv)) return {qkv, 0, q + 2 * kv, shape[0], shape[1]};
  if (id.role == Role::k && has(qkv)) return {qkv, q, q + 2 * kv, shape[0], shape[1]};
  if (id.role == Role::v && has(qkv)) return {qkv, q + kv, q + 2 * kv, shape[0], shape[1]};
  if (id.role == Role::gate && has(gate_up)) return {gate_up, 0, 2 * shape[0], shape[0], shape[1]};
  if (id.role == Role::up && has(gate_up)) return {gate_up, shape[0], 2 * shape[0], shape[0], shape[1]};
  return {};
}

// compressed-tensors and the methods of floats may quantise activations too, which reading the weights ignores.
bool quantises_activations(const json& config) {
  if (keeps_floats(text_of(config, "quant_method")) && !keeps_weights(config)) return true;
  if (const auto groups = config.find("config_groups"); groups != config.end() && groups->is_object())
    for (const auto& [name, group] : groups->items())
      if (group.is_object() && group.contains("input_activations") && group["input_activations"].is_object())
        return true;
  return false;
}

// compressed-tensors first wrote its configuration under another key.
void rename_older_key(json& config, TextFiles& texts) {
  constexpr const char* kOlder = "compression_config";
  if (!config.is_object() || config.contains("quantization_config") || !config.contains(kOlder)) return;
  // This one is about sparsity alone.
  if (!config[kOlder].is_object() || !config[kOlder].contains("quant_method")) return;
  config["quantization_config"] = config[kOlder];
  config.erase(kOlder);
  texts.put("config.json", config.dump(2));
}

bool quantises_cache(const json& config) {
  return config.contains("kv_cache_scheme") && !config["kv_cache_scheme"].is_null();
}

// Returns one line for each reason why codes were decoded.
std::vector<std::string> notes_of(const json& config, const std::map<std::string, int>& decoded) {
  std::vector<std::string> notes;
  for (const auto& [why, count] : decoded)
    notes.push_back(fmt::format("{} linears are decoded to F32: {}", count, why));
  if (quantises_activations(config))
    notes.push_back("its activations are meant to be quantised too; here they are as --activations says");
  if (quantises_cache(config))
    notes.push_back(
        "its keys and values are meant to be quantised too, by scales of its own, which are not read; here they are as "
        "--kv says");
  return notes;
}

// Opens a folder as it is and checks the rest of its configuration.
ModelSource open_plain(ModelSource source, const json& quantisation) {
  load_config(source.texts);  // Errors in the config are reported before any about the weights.
  source.tensors = std::make_shared<const Safetensors>(Safetensors::open(source.texts.name()));
  if (quantisation.is_null())
    check(
        !has_codes(*source.tensors),
        "{}: it holds codes of GPTQ or AWQ (tensors named .qweight), and nothing says how they are laid out: expected "
        "\"quantization_config\" in config.json, or quantize_config.json or quant_config.json beside it",
        source.texts.name());
  else if (quantisation.is_object())
    source.notes = notes_of(quantisation, {});
  return source;
}

// Reads the linears that the method quantised, in our formats.
void read_linears(ModelSource& source, const Method& how, const json& quantisation, const std::string& where) {
  const ModelConfig model = load_config(source.texts);
  std::map<std::string, int> decoded;
  for (LinearId id : linears_of(model)) {
    const Place place = place_of(model, id, *source.tensors, how.suffixes);
    if (place.module.empty()) continue;
    std::string why;
    source.linears[id] = how.open(*source.tensors, place, &why);
    if (!why.empty()) ++decoded[why];
  }
  check(!source.linears.empty(), "{}: \"quantization_config\" says {}, but no linear has tensors of it{}", where,
        how.name,
        how.name == "bitsandbytes" ? " in 4 bits; its 8 bits are not read here: give the repository it was made from"
                                   : "");
  source.notes = notes_of(quantisation, decoded);
}

}  // namespace

ModelSource open_source(const std::string& folder) {
  ModelSource source{folder, nullptr, {}, "", {}};
  json config = parse_json(source.texts.require("config.json"), source.texts.path("config.json"));
  rename_older_key(config, source.texts);
  take_modelopts_file(config, source.texts);
  json quantisation = config.is_object() ? config.value("quantization_config", json()) : json();
  std::string where = source.texts.path("config.json");
  if (quantisation.is_object()) use_todays_keys(quantisation);
  if (quantisation.is_null() && config.is_object())
    if (const auto stated = stated_beside(source.texts)) {
      load_config(source.texts);
      if (has_codes(Safetensors::open(folder))) {
        quantisation = config["quantization_config"] = stated->config;
        source.texts.put("config.json", config.dump(2));
        where = source.texts.path(stated->file);
      }
    }
  const std::string method = quantisation.is_object() ? lower_case(text_of(quantisation, "quant_method")) : "";
  const bool keeps = quantisation.is_object() && keeps_weights(quantisation);
  // MXFP4 is read of the one family that is released in it.
  const bool mxfp4 = method == "mxfp4" && text_of(config, "model_type") == "gpt_oss";
  const bool read_here = method == "gptq" || method == "awq" || method == "compressed-tensors" ||
                         keeps_floats(method) || method == "bitsandbytes" || mxfp4;
  if (keeps || read_here) {
    check_not_sparse(quantisation, where);
    config.erase("quantization_config");
    source.texts.put("config.json", config.dump(2));
  }
  if (keeps || !read_here) return open_plain(std::move(source), quantisation);
  quantisation["quant_method"] = method;
  source.quantised_by = method;
  const ModelConfig model = load_config(source.texts);
  if (mxfp4) {
    source.tensors = std::make_shared<const Safetensors>(Safetensors::open(folder));
    read_mxfp4(source, model, where);
    return source;
  }
  const Method how = method_of(quantisation, where);
  source.tensors = std::make_shared<const Safetensors>(Safetensors::open(folder));
  read_linears(source, how, quantisation, where);
  return source;
}

}  // namespace fidelio::quantised
