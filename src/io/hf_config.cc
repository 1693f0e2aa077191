#include "io/hf_config.h"

#include <algorithm>

#include "core/foreign/json.h"
#include "io/hf_keys.h"
#include "io/unserved/unserved.h"

namespace fidelio {
namespace {

using hf::Json;
using hf::Keys;
using hf::kMaxExperts;
using hf::kMaxInt;
constexpr int kMaxLayers = 1000;  // This is far above any model (126); each layer is looked up in lists and allocated.

// These are transformers' defaults for missing keys, where families differ. hk 0 means as many as h; e 0 means d / h.
struct Defaults {
  int hk, e, positions;
  double eps;
  bool tied;
  int bos, eos;  // -1 means none.
};
Defaults defaults_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama:
    case Architecture::granite:
    case Architecture::granite_moe:
      return {0, 0, 2048, 1e-6, false, 1, 2};
    case Architecture::mistral:
    case Architecture::ministral:
      return {8, 0, 131072, 1e-6, false, 1, 2};
    case Architecture::ministral3:
      return {8, 128, 262144, 1e-5, false, 1, 2};
    case Architecture::qwen2:
      return {32, 0, 32768, 1e-6, false, -1, -1};
    case Architecture::qwen3:
      return {32, 128, 32768, 1e-6, false, -1, -1};
    case Architecture::smollm3:
      return {4, 0, 32768, 1e-6, true, 128000, 128001};
    case Architecture::phi3:
      return {0, 0, 4096, 1e-5, false, 1, 32000};
    case Architecture::olmo2:
    case Architecture::olmo3:
      return {0, 0, 2048, 1e-5, false, -1, 50279};
    case Architecture::gemma3:
    case Architecture::gemma4:
      return {4, 256, 131072, 1e-6, true, 2, 1};
    case Architecture::mixtral:
      return {8, 0, 131072, 1e-5, false, 1, 2};
    case Architecture::olmoe:
      return {0, 0, 4096, 1e-5, false, -1, 50279};
    case Architecture::qwen3_moe:
      return {4, 0, 32768, 1e-6, false, -1, -1};
    case Architecture::qwen3_5:
      return {4, 256, 32768, 1e-6, false, -1, -1};
    case Architecture::qwen3_next:
    case Architecture::qwen3_5_moe:
      return {2, 256, 32768, 1e-6, false, -1, -1};
    case Architecture::qwen2_moe:
      return {16, 0, 32768, 1e-6, false, -1, -1};
    case Architecture::glm4_moe:
      return {8, 0, 131072, 1e-5, false, -1, -1};
    case Architecture::minimax_m2:
      return {8, 128, 196608, 1e-6, false, 200034, 200020};
    case Architecture::gpt_oss:
      return {8, 64, 131072, 1e-5, false, -1, -1};
  }
  return {};
}

std::string supported_names() {
  std::string names;
  for (const Family& family : families()) names += fmt::format("{}{}", names.empty() ? "" : ", ", family.class_name);
  return names;
}

[[noreturn]] void refuse_architecture(const Keys& keys, const std::string& name, const std::string& type) {
  const std::string& shown = name.empty() ? type : name;
  for (const Family& family : families()) {  // These are names such as LlamaForSequenceClassification or LlamaModel.
    const std::string_view own = family.class_name.substr(0, family.class_name.find("For"));
    check(name.empty() || type != family.model_type || !name.starts_with(own),
          "{}: architecture {} is not supported: it is a {} that does not end in a head which writes text. Supported "
          "is {}",
          keys.where(), name, type, family.class_name);
  }
  std::string about = about_unserved_model(shown, supported_names());
  if (about.starts_with(';')) about = about_unserved_model(type, supported_names());
  throw Error("{}: architecture {} is not supported{}", keys.where(), shown, about);
}

// `architectures` (a class) and model_type (a family) give the same fact; either may be missing, but not both.
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
  for (const Family& family : families()) {
    if (name.empty() ? type != family.model_type : name != family.class_name) continue;
    check(type.empty() || type == family.model_type, "{}: \"architectures\" says {} but \"model_type\" says {}",
          keys.where(), name, type);
    return family.architecture;
  }
  refuse_architecture(keys, name, type);
}

// Refuses a checkpoint that another program quantised. For one of our own, it reads what the weights expect of the
// forward pass.
void read_quantised(const Keys& keys, ModelConfig& c) {
  // MLX calls the key "quantization", and writes the same object without a method under the other key.
  const bool mlx = keys.find("quantization") != nullptr;
  const char* key = keys.find("quantization_config") || !mlx ? "quantization_config" : "quantization";
  const Json* config = keys.find(key);
  if (!config) return;
  std::string method = mlx                                                     ? "mlx"
                       : config->is_object() && config->contains("quant_algo") ? "modelopt"
                                                                               : "an unnamed method";
  if (config->is_object() && config->contains("quant_method") && (*config)["quant_method"].is_string())
    method = (*config)["quant_method"].get<std::string>();
  if (method == "fidelio") {  // It is our own, and io/checkpoint reads the weights.
    const std::string rotation = Keys(*config, keys.where()).text_or("rotation", "");
    check(rotation.empty() || rotation == "hadamard",
          "{}: key \"rotation\" of \"quantization_config\": expected \"hadamard\", got {}", keys.where(),
          foreign(rotation));
    c.rotated = !rotation.empty();
    c.kept_columns = Keys(*config, keys.where()).integer_or("kept_columns", 0, 0, 128);
    return;
  }
  throw Error("{}: this checkpoint is quantised already, by {} (key \"{}\"), which is not read here{}", keys.where(),
              method, key, about_unread_quantiser(method));
}

void read_dimensions(const Keys& keys, ModelConfig& c) {
  c.L = keys.integer("num_hidden_layers", 1, kMaxLayers);
  c.d = keys.integer("hidden_size", 1, kMaxInt);
  // The intermediate_size of these families is that of layers without experts.
  const bool shared = c.architecture == Architecture::qwen3_next || c.architecture == Architecture::qwen3_5_moe;
  const bool wide = c.architecture == Architecture::qwen2_moe || c.architecture == Architecture::glm4_moe;
  const bool own_width = c.architecture == Architecture::qwen3_moe || shared || wide;
  c.f = own_width ? keys.integer_or("moe_intermediate_size",
                                    shared ? 512
                                    : wide ? 1408
                                           : 768,
                                    1, kMaxInt)
                  : keys.integer("intermediate_size", 1, kMaxInt);
  // Configs of Gemma 3 models that see images leave these out where they are the class's defaults.
  const bool gemma = c.architecture == Architecture::gemma3;
  const int missing_v = c.architecture == Architecture::gemma4 ? 262144 : 262208;
  c.h = gemma ? keys.integer_or("num_attention_heads", 8, 1, kMaxInt) : keys.integer("num_attention_heads", 1, kMaxInt);
  c.v = gemma ? keys.integer_or("vocab_size", missing_v, 1, kMaxInt) : keys.integer("vocab_size", 1, kMaxInt);
  const Defaults missing = defaults_of(c.architecture);
  // null means "as many as h" everywhere.
  const int missing_hk = missing.hk == 0 || keys.present_even_if_null("num_key_value_heads") ? c.h : missing.hk;
  c.hk = keys.integer_or("num_key_value_heads", missing_hk, 1, kMaxInt);
  check(c.h % c.hk == 0, "{}: key \"num_key_value_heads\": expected a divisor of num_attention_heads = {}, got {}",
        keys.where(), c.h, c.hk);
  if (keys.find("head_dim")) {
    c.e = keys.integer("head_dim", 1, kMaxInt);
  } else if (missing.e != 0) {
    c.e = missing.e;
  } else {
    check(c.d % c.h == 0,
          "{}: key \"hidden_size\": expected a multiple of num_attention_heads = {} as \"head_dim\" is absent, got {}",
          keys.where(), c.h, c.d);
    c.e = c.d / c.h;
  }
  check(c.e % 2 == 0, "{}: key \"head_dim\": expected an even number (RoPE turns pairs), got {}", keys.where(), c.e);
  check(int64_t{c.h} * c.e <= kMaxInt, "{}: key \"head_dim\": {} heads of {} are too many", keys.where(), c.h, c.e);
}

void read_experts(const Keys& keys, ModelConfig& c) {
  if (c.blocks.experts == ExpertFiles::none || hf::has_mixed_layers(c.architecture)) return;
  if (hf::has_own_routers(c.architecture)) return hf::read_own_routers(keys, c);
  if (c.architecture == Architecture::gemma4) return;  // Its layers are read together.
  const bool gpt_oss = c.architecture == Architecture::gpt_oss;
  const bool local = c.architecture == Architecture::mixtral || c.architecture == Architecture::granite_moe || gpt_oss;
  const int missing = c.architecture == Architecture::qwen3_moe || gpt_oss ? 128 : local ? 8 : 64;
  const char *name = local ? "num_local_experts" : "num_experts", *other = local ? "num_experts" : "num_local_experts";
  const char* key = keys.find(name) || !keys.find(other) ? name : other;  // transformers accepts either name.
  c.experts = keys.integer_or(key, missing, 1, kMaxExperts / c.L);
  const char* per_row = gpt_oss && !keys.find("num_experts_per_tok") ? "experts_per_token" : "num_experts_per_tok";
  c.experts_per_row = keys.integer_or(per_row, gpt_oss ? std::min(4, c.experts) : local ? 2 : 8, 1, c.experts);
  c.router.bias = gpt_oss;
  c.renormalised = local || keys.boolean_or("norm_topk_prob", false);
  if (keys.integer_or("decoder_sparse_step", 1, 0, kMaxInt) != 1)
    keys.refuse("decoder_sparse_step", "1 (every layer has experts here)");
  if (const Json* dense = keys.find("mlp_only_layers"); dense && (!dense->is_array() || !dense->empty()))
    keys.refuse("mlp_only_layers", "an empty list (every layer has experts here)");
  if (keys.find("clip_qkv")) keys.refuse("clip_qkv", "null (queries, keys and values are not clipped here)");
}

// Tells whether a layer has a window by default, if layer_types do not say.
bool has_window(const Keys& keys, const ModelConfig& c, int layer) {
  switch (c.architecture) {
    case Architecture::qwen2:
    case Architecture::qwen3:
      return layer >= keys.integer_or("max_window_layers", 28, 0, kMaxInt);
    case Architecture::qwen2_moe:
      return layer % 2 == 0 && layer < keys.integer_or("max_window_layers", 28, 0, kMaxInt);
    case Architecture::smollm3:
      return c.kinds[static_cast<size_t>(layer)].rope == RopeUse::none;
    case Architecture::olmo3:
      return (layer + 1) % 4 != 0;
    case Architecture::gpt_oss:
      return layer % 2 == 0;
    case Architecture::gemma3:
      return (layer + 1) % keys.integer_or("sliding_window_pattern", 6, 1, kMaxInt) != 0;
    default:
      return true;
  }
}

// Returns the window of the layers that have one, or 0 if none has.
int read_window(const Keys& keys, const ModelConfig& c) {
  const auto window = [&](int otherwise) {
    return keys.integer_or("sliding_window", keys.present_even_if_null("sliding_window") ? 0 : otherwise, 1, kMaxInt);
  };
  switch (c.architecture) {
    case Architecture::mistral:
    case Architecture::ministral:
    case Architecture::olmo3:
    case Architecture::gemma3:
      return window(4096);
    case Architecture::gpt_oss:
      return window(128);
    case Architecture::ministral3:
    case Architecture::phi3:
    case Architecture::mixtral:
      return window(0);
    case Architecture::qwen2:
    case Architecture::qwen3:
    case Architecture::qwen3_moe:
    case Architecture::qwen2_moe:
      return keys.boolean_or("use_sliding_window", false) ? window(4096) : 0;
    case Architecture::smollm3:
      return keys.boolean_or("use_sliding_window", false) ? window(0) : 0;
    default:
      return 0;
  }
}

// Reads which layers of SmolLM3 have no rope.
void read_unturned(const Keys& keys, ModelConfig& c) {
  const int interval = keys.integer_or("no_rope_layer_interval", 4, 1, kMaxInt);
  const Json* list = keys.find("no_rope_layers");
  if (list && (!list->is_array() || list->size() < static_cast<size_t>(c.L)))
    keys.refuse("no_rope_layers",
                fmt::format("a list of {} numbers, 0 for a layer without RoPE and 1 for others", c.L));
  for (int i = 0; i < c.L; ++i) {
    const Json turned = list ? (*list)[static_cast<size_t>(i)] : Json((i + 1) % interval != 0 ? 1 : 0);
    if (!turned.is_number_integer() || (turned != 0 && turned != 1)) keys.refuse("no_rope_layers", "0 or 1 a layer");
    if (turned == 0) c.kinds[static_cast<size_t>(i)].rope = RopeUse::none;
  }
}

// Reads which layers have a window and which have rope.
void read_layers(const Keys& keys, ModelConfig& c) {
  if (hf::has_mixed_layers(c.architecture)) return hf::read_mixed_layers(keys, c);
  if (c.architecture == Architecture::gemma4) return hf::read_gemma4_layers(keys, c);
  c.kinds.assign(static_cast<size_t>(c.L), {});
  if (c.architecture == Architecture::smollm3) read_unturned(keys, c);
  const int window = read_window(keys, c);
  const Json* types = keys.find("layer_types");
  if (types && (!types->is_array() || types->size() != c.kinds.size()))
    keys.refuse("layer_types", fmt::format("a list of {} strings", c.L));
  bool any = false, all = true;
  for (int i = 0; i < c.L; ++i) {
    LayerKind& kind = c.kinds[static_cast<size_t>(i)];
    bool windowed = has_window(keys, c, i) && (window > 0 || c.local_rope);
    if (types) {
      const Json& type = (*types)[static_cast<size_t>(i)];
      if (type != "full_attention" && type != "sliding_attention")
        keys.refuse("layer_types", "full_attention or sliding_attention only");
      windowed = type == "sliding_attention";
    }
    if (windowed && window == 0) keys.refuse("layer_types", "full_attention, as no sliding window is set");
    if (windowed) kind.window = window;
    if (windowed && c.local_rope) kind.rope = RopeUse::local;
    any = any || windowed;
    all = all && windowed;
  }
  // transformers does not read the types of the layers here.
  const bool uniform = c.architecture == Architecture::mistral || c.architecture == Architecture::ministral3 ||
                       c.architecture == Architecture::phi3 || c.architecture == Architecture::mixtral ||
                       c.architecture == Architecture::qwen3_moe;
  if (uniform && any != all) keys.refuse("layer_types", "the same type in every layer");
  if (uniform && !any && window != 0) keys.refuse("layer_types", "sliding_attention, as sliding_window is set");
  c.sliding_window = any ? window : 0;
  hf::read_dense_layers(keys, c);
  if (std::all_of(c.kinds.begin(), c.kinds.end(), [&](const LayerKind& kind) {
        return kind == LayerKind{c.sliding_window, RopeUse::global};
      }))
    c.kinds.clear();
}

void read_token_ids(const Keys& keys, ModelConfig& c) {
  const Defaults missing = defaults_of(c.architecture);
  if (keys.find("bos_token_id"))
    c.bos_id = keys.integer("bos_token_id", 0, kMaxInt);
  else if (missing.bos >= 0 && !keys.present_even_if_null("bos_token_id"))
    c.bos_id = missing.bos;
  const Json* eos = keys.find("eos_token_id");
  if (!eos) {
    if (missing.eos >= 0 && !keys.present_even_if_null("eos_token_id")) c.eos_ids = {missing.eos};
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

// Returns the root of a number of columns as the model multiplies by it: rounded to the dtype that it was trained and
// is served in.
double gemma_embedding_scale(const ModelConfig& c, int columns) {
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(columns)));
  if (c.dtype == DType::bf16) return static_cast<double>(to_float(to_bf16(root)));
  if (c.dtype == DType::f16) return static_cast<double>(to_float(to_f16(root)));
  return static_cast<double>(root);
}

void read_scalars(const Keys& keys, ModelConfig& c) {
  if (c.architecture == Architecture::granite || c.architecture == Architecture::granite_moe) {
    c.embedding_scale = keys.number_or("embedding_multiplier", 1, 1e-9, 1e9);
    c.attention_scale = keys.number_or("attention_multiplier", 1, 1e-9, 1e9);
    c.residual_scale = keys.number_or("residual_multiplier", 1, 1e-6, 1e6);
    c.logit_divisor = keys.number_or("logits_scaling", 1, 1e-9, 1e9);
  }
  if (c.architecture == Architecture::gpt_oss) {
    c.gate_alpha = keys.number_or("swiglu_alpha", 1.702, 1e-6, 1e6);
    c.gate_limit = keys.number_or("swiglu_limit", 7, 1e-6, 1e30);
  }
  const bool gemma4 = c.architecture == Architecture::gemma4;
  if (!gemma4 && c.architecture != Architecture::gemma3) return;
  c.embedding_scale = gemma_embedding_scale(c, c.d);
  if (gemma4) {
    c.per_layer_scale = gemma_embedding_scale(c, c.per_layer);
    c.attention_scale = 1;
    return;
  }
  c.attention_scale = 1 / std::sqrt(keys.number_or("query_pre_attn_scalar", 256, 1e-6, 1e9));
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"})
    if (keys.find(key)) keys.refuse(key, "null (logits and scores are not capped here, as in all of Gemma 3)");
  if (keys.boolean_or("use_bidirectional_attention", false))
    keys.refuse("use_bidirectional_attention", "false (a position sees those before it)");
}

void read_activation(const Keys& keys, const ModelConfig& c) {
  const bool gelu = c.blocks.activation == Activation::gelu_tanh;
  const bool gemma = c.architecture == Architecture::gemma3 || c.architecture == Architecture::gemma4;
  const char* key = gemma ? "hidden_activation" : "hidden_act";
  const std::string name = keys.text_or(key, gelu ? "gelu_pytorch_tanh" : "silu");
  if (gelu ? name != "gelu_pytorch_tanh" : name != "silu" && name != "swish")
    keys.refuse(key, gelu ? "gelu_pytorch_tanh" : "silu");
}

void read_biases(const Keys& keys, ModelConfig& c) {
  bool attention = false, mlp = false;  // These say whether the family reads the key.
  switch (c.architecture) {
    case Architecture::llama:
    case Architecture::smollm3:
    case Architecture::granite:
      mlp = true;
      [[fallthrough]];
    case Architecture::qwen3:
    case Architecture::olmo2:
    case Architecture::olmo3:
    case Architecture::gemma3:
    case Architecture::gemma4:
    case Architecture::olmoe:
    case Architecture::qwen3_moe:
    case Architecture::granite_moe:
    case Architecture::qwen3_next:
    case Architecture::qwen3_5:
    case Architecture::qwen3_5_moe:
    case Architecture::gpt_oss:
      attention = true;
      break;
    case Architecture::qwen2_moe:
      c.qkv_bias = keys.boolean_or("qkv_bias", true);
      return;
    case Architecture::glm4_moe:
      c.qkv_bias = keys.boolean_or("attention_bias", false);
      return;
    default:
      break;
  }
  const bool gpt_oss = c.architecture == Architecture::gpt_oss;
  c.o_bias = attention && keys.boolean_or("attention_bias", gpt_oss);
  c.qkv_bias = c.o_bias || c.architecture == Architecture::qwen2;
  c.mlp_bias = gpt_oss || (mlp && keys.boolean_or("mlp_bias", false));
}

ModelConfig read_config(const Keys& keys) {
  ModelConfig c;
  c.architecture = read_architecture(keys);
  c.blocks = family_of(c.architecture).blocks;
  read_quantised(keys, c);
  const Defaults missing = defaults_of(c.architecture);
  read_dimensions(keys, c);
  read_experts(keys, c);
  read_activation(keys, c);
  c.rms_eps = static_cast<float>(keys.number_or("rms_norm_eps", missing.eps, 0, 1));
  c.max_positions = keys.integer_or("max_position_embeddings", missing.positions, 1, kMaxInt);
  hf::read_ropes(keys, c);
  hf::stretch_context(c);
  c.tie_embeddings = keys.boolean_or("tie_word_embeddings", missing.tied);
  read_biases(keys, c);
  read_layers(keys, c);
  read_token_ids(keys, c);
  c.dtype = read_dtype(keys);
  read_scalars(keys, c);
  // If "is_causal" is false, transformers lets a position of any family see later ones, as models that make embeddings
  // do.
  if (!keys.boolean_or("is_causal", true)) keys.refuse("is_causal", "true (a position sees those before it)");
  return c;
}

// Models that see images keep the config of the text model as a part of theirs. Qwen2.5-VL's first files have it beside
// the rest.
struct Within {
  std::string_view type;         // This is the type of the whole model.
  std::string_view text_type;    // This is the type of the text model by itself; if empty, its own part says it.
  std::string_view text_within;  // This is the type in its own part.
  bool beside = false;           // If true, files without a part of its own have it beside the rest.
};
constexpr Within kWithin[] = {{"mistral3", "", ""},
                              {"gemma3", "", ""},
                              {"gemma4", "gemma4_text", "gemma4_text"},
                              {"gemma4_unified", "gemma4_text", "gemma4_unified_text"},
                              {"qwen2_vl", "qwen2", "qwen2_vl_text", true},
                              {"qwen2_5_vl", "qwen2", "qwen2_5_vl_text", true},
                              {"qwen3_vl", "qwen3", "qwen3_vl_text", true},
                              {"qwen3_5", "qwen3_5_text", "qwen3_5_text"},
                              {"qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_moe_text"}};

// "mrope" rotates parts of a head by the rows and columns of a picture. Text has one position for all of them, for
// which it is the plain rope.
void drop_picture_ropes(Json& text) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!text.contains(key) || !text[key].is_object()) continue;
    Json& rope = text[key];
    for (const char* of_pictures : {"mrope_section", "mrope_interleaved"}) rope.erase(of_pictures);
    for (const char* type : {"type", "rope_type"})
      if (rope.contains(type) && rope[type] == "mrope") rope[type] = "default";
  }
}

Json parse_object(std::string_view json, const std::string& file) {
  const Json object = parse_json(json, file);
  check(object.is_object(), "{}: expected a JSON object, got a JSON {}", file, object.type_name());
  const Json type = object.value("model_type", Json());
  const auto* within = std::ranges::find_if(kWithin, [&](const Within& w) { return type == w.type; });
  const bool flat = within != std::end(kWithin) && within->beside && !object.contains("text_config");
  if (within == std::end(kWithin) || (!flat && !object.contains("text_config"))) return object;
  Json text = flat ? object : object["text_config"];
  check(text.is_object(), "{}: key \"text_config\": expected an object, got a JSON {}", file, text.type_name());
  for (const char* key : {"dtype", "torch_dtype", "bos_token_id", "eos_token_id", "tie_word_embeddings",
                          "quantization_config", "transformers_version"})
    if (!text.contains(key) && object.contains(key)) text[key] = object[key];
  // transformers 5 ties the head as the outer config says, and writes the default of the text model beside it.
  const auto tied = object.find("tie_word_embeddings");
  if (tied != object.end() && *tied == true) text["tie_word_embeddings"] = true;
  text.erase("architectures");
  text.erase("vision_config");
  if (!within->text_type.empty() &&
      (flat || text.value("model_type", Json(within->text_within)) == within->text_within)) {
    // This type of text model has no embeddings for each layer, and no key that says so.
    if (type == "gemma4_unified") text["hidden_size_per_layer_input"] = 0;
    text["model_type"] = within->text_type;
    drop_picture_ropes(text);
  }
  for (const Family& family : families())
    if (text.contains("model_type") && text["model_type"] == family.model_type)
      text["architectures"] = {family.class_name};
  return text;
}

}  // namespace

ModelConfig parse_config(std::string_view json, const std::string& file) {
  const Json object = parse_object(json, file);
  return read_config(Keys(object, file));
}

ModelConfig load_config(const TextFiles& files) {
  return parse_config(files.require("config.json"), files.path("config.json"));
}

nlohmann::json text_config(const TextFiles& files) {
  return parse_object(files.require("config.json"), files.path("config.json"));
}

}  // namespace fidelio
