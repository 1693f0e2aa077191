#include "io/hf_config.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/json.h"

namespace fidelio {
namespace {

using Json = nlohmann::json;
constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int kMaxLayers = 10000;  // far above any model; keeps nonsense from becoming a huge allocation

constexpr Architecture kArchitectures[] = {Architecture::llama, Architecture::mistral, Architecture::qwen2,
                                           Architecture::qwen3};

// One JSON object with messages that name file, key, expected and got. null counts as absent, as in transformers.
class Keys {
 public:
  Keys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool present_even_if_null(const char* key) const { return object_.contains(key); }

  [[noreturn]] void refuse(const char* key, std::string_view expected) const {
    const Json* value = find(key);
    throw Error("{}: key \"{}\": expected {}, got {}", where_, key, expected,
                value ? foreign(value->dump()) : "nothing");
  }
  int integer(const char* key, int low, int high) const {
    const Json* value = find(key);
    if (!value || !value->is_number_integer() || *value < low || *value > high)
      refuse(key, fmt::format("an integer from {} to {}", low, high));
    return value->get<int>();
  }
  int integer_or(const char* key, int otherwise, int low, int high) const {
    return find(key) ? integer(key, low, high) : otherwise;
  }
  double number(const char* key, double low, double high) const {
    const Json* value = find(key);
    const double x = value && value->is_number() ? value->get<double>() : std::nan("");
    if (!(x >= low && x <= high)) refuse(key, fmt::format("a number from {} to {}", low, high));
    return x;
  }
  double number_or(const char* key, double otherwise, double low, double high) const {
    return find(key) ? number(key, low, high) : otherwise;
  }
  bool boolean_or(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_boolean()) refuse(key, "true or false");
    return value->get<bool>();
  }
  std::string text_or(const char* key, const char* otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_string()) refuse(key, "a string");
    return value->get<std::string>();
  }
  const Json& json() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

std::string_view model_type_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama:
      return "llama";
    case Architecture::mistral:
      return "mistral";
    case Architecture::qwen2:
      return "qwen2";
    case Architecture::qwen3:
      return "qwen3";
  }
  return "?";
}

// `architectures` (a class) and model_type (a family) say the same thing twice; either may be missing, not both.
Architecture read_architecture(const Keys& keys) {
  std::string name;
  if (const Json* list = keys.find("architectures")) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string())
      keys.refuse("architectures", "a list of one class name");
    name = list->front().get<std::string>();
  }
  const std::string type = keys.text_or("model_type", "");
  check(!name.empty() || !type.empty(), "{}: neither \"architectures\" nor \"model_type\" says what model this is",
        keys.where());
  for (const Architecture candidate : kArchitectures) {
    if (name.empty() ? type != model_type_of(candidate) : name != name_of(candidate)) continue;
    check(type.empty() || type == model_type_of(candidate), "{}: \"architectures\" says {} but \"model_type\" says {}",
          keys.where(), name, type);
    return candidate;
  }
  throw Error(
      "{}: architecture {} is not supported; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and "
      "Qwen3ForCausalLM",
      keys.where(), name.empty() ? type : name);
}

void refuse_quantised(const Keys& keys) {
  const Json* config = keys.find("quantization_config");
  if (!config) return;
  std::string method = "an unnamed method";
  if (config->is_object() && config->contains("quant_method") && (*config)["quant_method"].is_string())
    method = (*config)["quant_method"].get<std::string>();
  if (method == "fidelio") return;  // our own: io/checkpoint reads it
  throw Error(
      "{}: this checkpoint is quantised already, by {} (key \"quantization_config\"), which is not read here; read are "
      "gptq, awq and compressed-tensors; give one of those or the original checkpoint",
      keys.where(), method);
}

void read_dimensions(const Keys& keys, ModelConfig& c) {
  c.L = keys.integer("num_hidden_layers", 1, kMaxLayers);
  c.d = keys.integer("hidden_size", 1, kMaxInt);
  c.f = keys.integer("intermediate_size", 1, kMaxInt);
  c.h = keys.integer("num_attention_heads", 1, kMaxInt);
  c.v = keys.integer("vocab_size", 1, kMaxInt);
  // null means "as many as h" everywhere; a missing key means that in Llama only.
  int missing_hk = c.h;
  if (!keys.present_even_if_null("num_key_value_heads")) {
    if (c.architecture == Architecture::mistral) missing_hk = 8;
    if (c.architecture == Architecture::qwen2 || c.architecture == Architecture::qwen3) missing_hk = 32;
  }
  c.hk = keys.integer_or("num_key_value_heads", missing_hk, 1, kMaxInt);
  check(c.h % c.hk == 0, "{}: key \"num_key_value_heads\": expected a divisor of num_attention_heads = {}, got {}",
        keys.where(), c.h, c.hk);
  if (keys.find("head_dim")) {
    c.e = keys.integer("head_dim", 1, kMaxInt);
  } else if (c.architecture == Architecture::qwen3) {
    c.e = 128;
  } else {
    check(c.d % c.h == 0,
          "{}: key \"hidden_size\": expected a multiple of num_attention_heads = {} as \"head_dim\" is absent, got {}",
          keys.where(), c.h, c.d);
    c.e = c.d / c.h;
  }
  check(c.e % 2 == 0, "{}: key \"head_dim\": expected an even number (RoPE turns pairs), got {}", keys.where(), c.e);
  check(int64_t{c.h} * c.e <= kMaxInt, "{}: key \"head_dim\": {} heads of {} are too many", keys.where(), c.h, c.e);
}

void read_llama3(const Keys& keys, Rope& rope) {
  rope.low_freq_factor = keys.number("low_freq_factor", 1e-6, 1e6);
  rope.high_freq_factor = keys.number("high_freq_factor", 1e-6, 1e6);
  if (rope.high_freq_factor <= rope.low_freq_factor) keys.refuse("high_freq_factor", "a number above low_freq_factor");
}

// The factor on cos and sin: given, or from the stretch (Peng et al. 2023, equation 22), or DeepSeek's ratio of two
// such.
void read_yarn(const Keys& keys, Rope& rope) {
  // 0 stands for the default here, as in transformers.
  const auto or_default = [](double value, double otherwise) { return value == 0 ? otherwise : value; };
  rope.beta_fast = or_default(keys.number_or("beta_fast", 0, 0, 1e6), 32);
  rope.beta_slow = or_default(keys.number_or("beta_slow", 0, 0, 1e6), 1);
  if (rope.beta_fast < rope.beta_slow) keys.refuse("beta_fast", fmt::format("at least beta_slow = {}", rope.beta_slow));
  rope.truncate = keys.boolean_or("truncate", true);
  const auto scale = [&](double m) { return rope.factor <= 1 ? 1.0 : 0.1 * m * std::log(rope.factor) + 1.0; };
  const double mscale = keys.number_or("mscale", 0, 0, 1e6), all = keys.number_or("mscale_all_dim", 0, 0, 1e6);
  const double derived = mscale != 0 && all != 0 ? scale(mscale) / scale(all) : scale(1);
  rope.attention_factor = keys.number_or("attention_factor", derived, 1e-6, 1e6);
}

// `scaling` is rope_scaling or rope_parameters, or an empty object.
Rope read_rope(const Keys& top, const Keys& scaling, int max_positions) {
  for (const auto& [key, value] : scaling.json().items())
    check(!value.is_object(),
          "{}: rope parameters per layer type (\"{}\") are not supported: expected one set for all layers",
          scaling.where(), key);
  Rope rope;
  const Keys& theta_from = scaling.find("rope_theta") ? scaling : top;
  rope.theta = theta_from.number_or("rope_theta", 10000, 1.000001, 1e30);
  const Keys& partial_from = scaling.find("partial_rotary_factor") ? scaling : top;
  if (partial_from.number_or("partial_rotary_factor", 1, 0, 1) != 1)
    partial_from.refuse("partial_rotary_factor", "1 (RoPE over the whole head)");

  const char* key = scaling.find("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.text_or(key, "default");
  if (type == "default") return rope;
  if (type == "linear")
    rope.type = RopeType::linear;
  else if (type == "llama3")
    rope.type = RopeType::llama3;
  else if (type == "yarn")
    rope.type = RopeType::yarn;
  else
    scaling.refuse(key, "one of default, linear, llama3, yarn");

  if (rope.type != RopeType::linear) {
    const Keys& from = top.find("original_max_position_embeddings") ? top : scaling;
    rope.original_max_positions = from.integer_or("original_max_position_embeddings", max_positions, 1, kMaxInt);
  }
  // yarn alone may leave it open with an explicit null: the ratio of the two context lengths then.
  const bool ratio = rope.type == RopeType::yarn && scaling.present_even_if_null("factor") && !scaling.find("factor");
  rope.factor =
      ratio ? static_cast<double>(max_positions) / rope.original_max_positions : scaling.number("factor", 1, 1e6);
  if (rope.type == RopeType::llama3) read_llama3(scaling, rope);
  if (rope.type == RopeType::yarn) read_yarn(scaling, rope);
  return rope;
}

Rope read_rope(const Keys& keys, int max_positions) {
  static const Json kNone = Json::object();
  // transformers lets a non-empty rope_scaling win.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = keys.find(key);
    if (!value) continue;
    if (!value->is_object()) keys.refuse(key, "an object or null");
    if (!value->empty()) return read_rope(keys, Keys(*value, keys.where() + ": " + key), max_positions);
  }
  return read_rope(keys, Keys(kNone, keys.where()), max_positions);
}

// Layers from max_window_layers on have the window in Qwen models, all in Mistral, none in Llama.
int read_window(const Keys& keys, const ModelConfig& c) {
  const bool mistral = c.architecture == Architecture::mistral;
  const bool qwen = c.architecture == Architecture::qwen2 || c.architecture == Architecture::qwen3;
  int window = 0, first = 0;
  if (mistral || (qwen && keys.boolean_or("use_sliding_window", false)))
    window = keys.integer_or("sliding_window", keys.present_even_if_null("sliding_window") ? 0 : 4096, 1, kMaxInt);
  if (qwen && window > 0) first = keys.integer_or("max_window_layers", 28, 0, kMaxInt);
  if (const Json* types = keys.find("layer_types")) {
    if (!types->is_array() || types->size() != static_cast<size_t>(c.L))
      keys.refuse("layer_types", fmt::format("a list of {} strings", c.L));
    size_t windowed = 0;
    for (const Json& type : *types) {
      if (type != "full_attention" && type != "sliding_attention")
        keys.refuse("layer_types", "full_attention or sliding_attention only");
      windowed += type == "sliding_attention";
    }
    if (windowed != 0 && windowed != types->size()) keys.refuse("layer_types", "the same type in every layer");
    if (windowed != 0 && window == 0) keys.refuse("layer_types", "full_attention, as no sliding window is set,");
    if (mistral && windowed == 0 && window != 0)
      keys.refuse("layer_types", "sliding_attention, as sliding_window is set,");
    return windowed != 0 ? window : 0;
  }
  if (window == 0 || first >= c.L) return 0;
  if (first > 0)
    keys.refuse("max_window_layers",
                fmt::format("0 or at least num_hidden_layers = {} (the sliding window in all layers or none)", c.L));
  return window;
}

void read_token_ids(const Keys& keys, ModelConfig& c) {
  const bool sentencepiece = c.architecture == Architecture::llama || c.architecture == Architecture::mistral;
  if (keys.find("bos_token_id"))
    c.bos_id = keys.integer("bos_token_id", 0, kMaxInt);
  else if (sentencepiece && !keys.present_even_if_null("bos_token_id"))
    c.bos_id = 1;
  const Json* eos = keys.find("eos_token_id");
  if (!eos) {
    if (sentencepiece && !keys.present_even_if_null("eos_token_id")) c.eos_ids = {2};
    return;
  }
  if (!eos->is_array()) {
    c.eos_ids = {keys.integer("eos_token_id", 0, kMaxInt)};
    return;
  }
  for (const Json& id : *eos) {
    if (!id.is_number_integer() || id < 0 || id > kMaxInt)
      keys.refuse("eos_token_id", "an integer from 0 or a list of those");
    c.eos_ids.push_back(id.get<int>());
  }
}

std::optional<DType> read_dtype(const Keys& keys) {
  const char* key = keys.find("dtype") ? "dtype" : "torch_dtype";
  std::string name = keys.text_or(key, "");
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (name.empty()) return std::nullopt;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  if (name == "float32") return DType::f32;
  keys.refuse(key, "bfloat16, float16 or float32");
}

ModelConfig read_config(const Keys& keys) {
  ModelConfig c;
  c.architecture = read_architecture(keys);
  refuse_quantised(keys);
  const bool llama = c.architecture == Architecture::llama, qwen2 = c.architecture == Architecture::qwen2;
  read_dimensions(keys, c);
  const std::string activation = keys.text_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") keys.refuse("hidden_act", "silu");
  c.rms_eps = static_cast<float>(keys.number_or("rms_norm_eps", 1e-6, 0, 1));
  const int family_positions = llama ? 2048 : c.architecture == Architecture::mistral ? 131072 : 32768;
  c.max_positions = keys.integer_or("max_position_embeddings", family_positions, 1, kMaxInt);
  c.rope = read_rope(keys, c.max_positions);
  c.tie_embeddings = keys.boolean_or("tie_word_embeddings", false);
  // Mistral and Qwen2 do not read attention_bias, only Llama reads mlp_bias.
  const bool attention_bias =
      (llama || c.architecture == Architecture::qwen3) && keys.boolean_or("attention_bias", false);
  c.qkv_bias = qwen2 || attention_bias;
  c.o_bias = attention_bias;
  c.mlp_bias = llama && keys.boolean_or("mlp_bias", false);
  c.qk_norm = c.architecture == Architecture::qwen3;
  c.sliding_window = read_window(keys, c);
  read_token_ids(keys, c);
  c.dtype = read_dtype(keys);
  return c;
}

}  // namespace

ModelConfig parse_config(std::string_view json, const std::string& file) {
  const Json object = parse_json(json, file);
  check(object.is_object(), "{}: expected a JSON object, got a JSON {}", file, object.type_name());
  return read_config(Keys(object, file));
}

ModelConfig load_config(const TextFiles& files) {
  return parse_config(files.require("config.json"), files.path("config.json"));
}

}  // namespace fidelio
