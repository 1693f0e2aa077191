#include "io/gguf/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "arch/model_config.h"
#include "io/gguf/reading/keys.h"
#include "io/unserved/unserved.h"

namespace fidelio::gguf {
namespace {

using nlohmann::json;

// Both are far above any model; the experts of all layers are counted together.
constexpr int64_t kMaxLayers = 1000, kMaxExperts = 65536;

// The shares with which a row's experts are added may not exist (none), sum to 1 (of_chosen), or be what the softmax
// over all experts gives the chosen ones (of_all). They may be sigmoids that sum to 1 (sigmoids_of_chosen), or do so
// where keys say it (sigmoids). llama.cpp has this in the code of an architecture.
enum class Shares : uint8_t { none, of_chosen, of_all, sigmoids_of_chosen, sigmoids };

struct Family {
  std::string_view name;        // This is the general.architecture of GGUF.
  std::string_view class_name;  // This is the name of Hugging Face's class.
  std::string_view model_type;
  bool paired;  // This is the result of rows_are_paired().
  Shares shares = Shares::none;
};
// Mixtral has the architecture "llama", with experts.
constexpr std::array<Family, 20> kFamilies = {
    {{"llama", "LlamaForCausalLM", "llama", true},
     {"llama", "MixtralForCausalLM", "mixtral", true, Shares::of_chosen},
     {"qwen2", "Qwen2ForCausalLM", "qwen2", false},
     {"qwen3", "Qwen3ForCausalLM", "qwen3", false},
     {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", false, Shares::of_chosen},
     {"phi3", "Phi3ForCausalLM", "phi3", false},
     {"smollm3", "SmolLM3ForCausalLM", "smollm3", true},
     {"granite", "GraniteForCausalLM", "granite", true},
     {"granitemoe", "GraniteMoeForCausalLM", "granitemoe", true, Shares::of_chosen},
     {"olmo2", "Olmo2ForCausalLM", "olmo2", false},
     {"olmoe", "OlmoeForCausalLM", "olmoe", false, Shares::of_all},
     {"gemma3", "Gemma3ForCausalLM", "gemma3_text", false},
     {"gemma4", "Gemma4ForCausalLM", "gemma4_text", false, Shares::of_chosen},
     {"qwen3next", "Qwen3NextForCausalLM", "qwen3_next", false, Shares::of_chosen},
     {"qwen35", "Qwen3_5ForCausalLM", "qwen3_5_text", false},
     {"qwen35moe", "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", false, Shares::of_chosen},
     {"qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe", false, Shares::of_all},
     {"glm4moe", "Glm4MoeForCausalLM", "glm4_moe", false, Shares::sigmoids},
     {"minimax-m2", "MiniMaxM2ForCausalLM", "minimax_m2", false, Shares::sigmoids_of_chosen},
     {"gpt-oss", "GptOssForCausalLM", "gpt_oss", false, Shares::of_chosen}}};

// These families have layers with delta nets.
bool has_mixed_layers(const Family& family) { return family.name == "qwen3next" || family.name.starts_with("qwen35"); }
// In these families feed_forward_length is the width of layers without experts.
bool has_own_width(const Family& family) {
  return family.name == "qwen3moe" || family.name == "qwen3next" || family.name == "qwen35moe" ||
         family.name == "qwen2moe" || family.name == "glm4moe";
}
// In these families a row passes one expert besides the chosen ones, under a gate.
bool has_shared_expert(const Family& family) { return has_mixed_layers(family) || family.name == "qwen2moe"; }

const Family& family_of(const File& file) {
  const auto name = file.text("general.architecture");
  check(name.has_value(), "{}: the key \"general.architecture\" is missing", file.path());
  const bool mixtral = name == "llama" && file.integer("llama.expert_count").value_or(0) != 0;
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.name == *name && (family.model_type == "mixtral" || !mixtral)) return family;
    if (family.model_type != "mixtral") known += fmt::format("{}{}", known.empty() ? "" : ", ", family.name);
  }
  throw Error("{}: key \"general.architecture\": {} is not supported{}", file.path(), shown(*name),
              about_unserved_model(*name, known));
}

// Llama 3's scaling is stored as the divisors of the frequencies. The parameters that gave them are searched among
// those whose every divisor equals the file's: 1 and 4 for the two factors, as in all published models, and the
// original context among powers of two.
json llama3_scaling(const File& file, double theta, int64_t head_dim) {
  const std::vector<double> divisors = vector_of(file, "rope_freqs.weight");
  check(static_cast<int64_t>(divisors.size()) == head_dim / 2,
        "{}: tensor \"rope_freqs.weight\" has {} values, expected {}", file.path(), divisors.size(), head_dim / 2);
  ModelConfig c;
  c.e = static_cast<int>(head_dim);
  c.rope.theta = theta;
  const auto plain = rope_inverse_frequencies(c);
  c.rope.type = RopeType::llama3;
  c.rope.low_freq_factor = 1, c.rope.high_freq_factor = 4;
  const double largest = *std::max_element(divisors.begin(), divisors.end());
  for (int original = 16; original <= 1 << 20; original *= 2) {
    c.rope.factor = std::nearbyint(largest * 1024) / 1024;
    c.rope.original_max_positions = original;
    const auto scaled = rope_inverse_frequencies(c);
    bool same = c.rope.factor >= 1;
    // Both are quotients of FP32 numbers that went through some six roundings.
    for (size_t i = 0; i < divisors.size(); ++i)
      same = same && std::abs(plain[i] / scaled[i] - divisors[i]) <= 8 * 0x1p-24 * divisors[i];
    if (same)
      return {{"rope_type", "llama3"},
              {"factor", c.rope.factor},
              {"low_freq_factor", 1.0},
              {"high_freq_factor", 4.0},
              {"original_max_position_embeddings", original}};
  }
  throw Error("{}: the divisors in \"rope_freqs.weight\" are not those of Llama 3's scaling with factors 1 and 4",
              file.path());
}

json rope_scaling(Keys& keys, double theta, int64_t head_dim) {
  const File& file = keys.file();
  const std::string type = keys.text("rope.scaling.type").value_or("none");
  const auto factor = keys.number("rope.scaling.factor"), older = keys.number("rope.scale_linear");
  const auto original = keys.integer("rope.scaling.original_context_length");
  const auto attention = keys.number("rope.scaling.attn_factor");
  keys.boolean("rope.scaling.finetuned");  // This key says how the model was made and not what it computes.
  if (has_tensor(file, "rope_freqs.weight")) {
    keys.expect(type == "none", "rope.scaling.type", "none beside the tensor rope_freqs.weight");
    return llama3_scaling(file, theta, head_dim);
  }
  if (has_tensor(file, "rope_factors_short.weight")) {
    check(original.has_value(), "{}: rope_factors_short.weight stands without rope.scaling.original_context_length",
          file.path());
    json scaling = {{"rope_type", "longrope"},
                    {"short_factor", vector_of(file, "rope_factors_short.weight")},
                    {"long_factor", vector_of(file, "rope_factors_long.weight")},
                    {"original_max_position_embeddings", *original}};
    if (attention) scaling["attention_factor"] = *attention;
    return scaling;
  }
  if (type == "none" || type == "linear") {
    const double by = factor.value_or(older.value_or(1));
    if (type == "none" || by == 1) keys.expect(type != "none" || by == 1, "rope.scaling.factor", "1 without a type");
    return by == 1 ? json() : json{{"rope_type", "linear"}, {"factor", by}};
  }
  keys.expect(type == "yarn" && factor && original, "rope.scaling.type",
              "none, linear, or yarn with its factor and original_context_length");
  json scaling = {{"rope_type", "yarn"}, {"factor", *factor}, {"original_max_position_embeddings", *original}};
  if (const auto fast = keys.number("rope.scaling.yarn_beta_fast")) scaling["beta_fast"] = *fast;
  if (const auto slow = keys.number("rope.scaling.yarn_beta_slow")) scaling["beta_slow"] = *slow;
  // llama.cpp multiplies the usual factor on cos and sin by this.
  if (attention && *attention != 1) scaling["attention_factor"] = *attention * (1 + 0.1 * std::log(*factor));
  return scaling;
}

// These keys must have one value or be missing.
void expect_plain(Keys& keys) {
  keys.expect(keys.boolean("attention.causal").value_or(true), "attention.causal", "true");
  keys.expect(keys.boolean("use_parallel_residual").value_or(false) == false, "use_parallel_residual", "false");
  keys.text("tensor_data_layout");
}

// Returns the width of a layer's MLP, or of one of its experts.
int64_t feed_forward_of(Keys& keys, const Family& family) {
  const auto own = keys.integer("expert_feed_forward_length");
  if (!has_own_width(family)) {
    const int64_t width = keys.required("feed_forward_length");
    keys.expect(own.value_or(width) == width, "expert_feed_forward_length", "that of feed_forward_length");
    return width;
  }
  // feed_forward_length is the width of layers without experts. Where experts have no key, it is divided among the used
  // ones.
  const int64_t all = own ? keys.integer("feed_forward_length").value_or(0) : keys.required("feed_forward_length");
  return own.value_or(all / std::max<int64_t>(keys.integer("expert_used_count").value_or(1), 1));
}

// Puts how experts are scored and chosen, and refuses what no model of the family has.
void put_router(json& config, Keys& keys, const Family& family) {
  const auto number = [&](const char* name) { return keys.integer(name).value_or(0); };
  const auto norm = keys.boolean("expert_weights_norm");
  const double scale = keys.number("expert_weights_scale").value_or(0);  // 0 stands for 1
  const int64_t gate = number("expert_gating_func"), groups = number("expert_group_count"),
                used = number("expert_group_used_count");
  if (family.shares == Shares::sigmoids) {
    keys.expect(gate == 0 || gate == 2, "expert_gating_func", "2 (a sigmoid)");
    config["norm_topk_prob"] = norm.value_or(false);
    config["routed_scaling_factor"] = scale == 0 ? json(1.0) : written(scale);
    config["n_group"] = std::max<int64_t>(groups, 1);
    config["topk_group"] = std::max<int64_t>(used, 1);
    return;
  }
  const bool of_all = family.shares == Shares::of_all, sigmoids = family.shares == Shares::sigmoids_of_chosen;
  keys.expect(norm.value_or(!of_all) == !of_all, "expert_weights_norm",
              of_all ? "false, as llama.cpp computes it for this architecture"
                     : "true, as llama.cpp computes it for this architecture");
  keys.expect(scale == 0 || scale == 1, "expert_weights_scale", "1 (what experts give is not scaled)");
  const bool of_chosen = gate == 3 && family.name == "gpt-oss";  // It is that of the chosen alone, which is the same.
  keys.expect(gate == 0 || gate == (sigmoids ? 2 : 1) || of_chosen, "expert_gating_func",
              sigmoids ? "2 (a sigmoid)" : "1 (a softmax)");
  keys.expect(groups <= 1, "expert_group_count", "1 (experts are not chosen by groups)");
  keys.expect(used <= 1, "expert_group_used_count", "1 (experts are not chosen by groups)");
  const bool has_key = has_own_width(family) || family.name == "olmoe";
  if (has_key) config["norm_topk_prob"] = !of_all;
}

// Puts the experts that every row passes.
void put_shared_experts(json& config, Keys& keys, const Family& family, int64_t layers) {
  const int64_t shared = keys.integer("expert_shared_count").value_or(0);
  int64_t width = keys.integer("expert_shared_feed_forward_length").value_or(0);
  if (family.name == "glm4moe") {
    keys.expect(shared >= 0 && shared <= kMaxExperts, "expert_shared_count", "the experts that every row passes");
    const int64_t all = shared * config["intermediate_size"].get<int64_t>();
    keys.expect(width == 0 || width == all, "expert_shared_feed_forward_length", "that of expert_shared_count experts");
    config["n_shared_experts"] = shared;
    return;
  }
  if (!has_shared_expert(family)) {
    keys.expect(shared == 0, "expert_shared_count", "0 (no experts that every row passes)");
    keys.expect(width == 0, "expert_shared_feed_forward_length", "0 (no experts that every row passes)");
    return;
  }
  keys.expect(shared == 0 || shared == 1, "expert_shared_count", "1 (one expert that every row passes)");
  // llama.cpp's files leave the width out where it is that of layers without experts.
  const File& file = keys.file();
  for (int64_t i = 0; i < layers && width == 0; ++i)
    if (const std::string name = fmt::format("blk.{}.ffn_gate_shexp.weight", i); has_tensor(file, name))
      width = tensor(file, name).rows;
  config["shared_expert_intermediate_size"] = width;
}

// Reads the number of experts, and how they are chosen.
void put_experts(json& config, Keys& keys, const Family& family, int64_t layers) {
  const auto number = [&](const char* name) { return keys.integer(name).value_or(0); };
  const int64_t experts = number("expert_count"), used = number("expert_used_count");
  if (family.shares == Shares::none) {
    keys.expect(experts == 0, "expert_count", "0 (no experts)");
    keys.expect(used == 0, "expert_used_count", "0 (no experts)");
    return;
  }
  keys.expect(experts >= 1 && experts <= kMaxExperts / layers, "expert_count",
              fmt::format("1 to {} experts in each of {} layers", kMaxExperts / layers, layers));
  keys.expect(used >= 1 && used <= experts, "expert_used_count", fmt::format("1 to all of the {} experts", experts));
  put_router(config, keys, family);
  put_shared_experts(config, keys, family, layers);
  const int64_t dense = number("leading_dense_block_count");
  if (family.name == "glm4moe")
    config["first_k_dense_replace"] = dense;
  else
    keys.expect(dense == 0, "leading_dense_block_count", "0 (every layer has experts)");
  const bool each = has_own_width(family) || family.name == "olmoe";
  config[family.name == "glm4moe" ? "n_routed_experts" : each ? "num_experts" : "num_local_experts"] = experts;
  config["num_experts_per_tok"] = used;
  if (has_own_width(family)) config["moe_intermediate_size"] = config["intermediate_size"];
}

// Puts the numbers of delta nets, which layers have one, and which layers of qwen3next have no experts.
void put_mixed_layers(json& config, Keys& keys, const Family& family, int64_t layers) {
  const int64_t value_heads = keys.required("ssm.time_step_rank"), inner = keys.required("ssm.inner_size");
  keys.expect(value_heads > 0 && inner % value_heads == 0, "ssm.inner_size", "a multiple of ssm.time_step_rank");
  config["linear_conv_kernel_dim"] = keys.required("ssm.conv_kernel");
  config["linear_key_head_dim"] = keys.required("ssm.state_size");
  config["linear_num_key_heads"] = keys.required("ssm.group_count");
  config["linear_num_value_heads"] = value_heads;
  config["linear_value_head_dim"] = inner / value_heads;
  keys.integers("rope.dimension_sections");  // These are for pictures; text has one position for all of them.
  keys.integer("nextn_predict_layers");
  const int64_t interval = keys.integer("full_attention_interval").value_or(4);
  keys.expect(interval > 0, "full_attention_interval", "a number above 0");
  const auto recurrent = keys.booleans("attention.recurrent_layers");
  keys.expect(!recurrent || std::ssize(*recurrent) >= layers, "attention.recurrent_layers",
              fmt::format("true or false for each of {} layers", layers));
  json types = json::array(), dense = json::array();
  for (int64_t i = 0; i < layers; ++i) {
    const bool delta_net = recurrent ? (*recurrent)[static_cast<size_t>(i)] : (i + 1) % interval != 0;
    types.push_back(delta_net ? "linear_attention" : "full_attention");
    if (!has_tensor(keys.file(), fmt::format("blk.{}.ffn_gate_inp.weight", i))) dense.push_back(i);
    for (const char* bias : {"attn_q", "attn_output"})
      if (has_tensor(keys.file(), fmt::format("blk.{}.{}.bias", i, bias))) config["attention_bias"] = true;
  }
  config["layer_types"] = std::move(types);
  if (family.name != "qwen3next" || dense.empty()) return;
  config["mlp_only_layers"] = std::move(dense);
  config["intermediate_size"] = keys.required("feed_forward_length");
}

void put_family(json& config, Keys& keys, const Family& family, int64_t layers, int64_t head_dim) {
  if (has_mixed_layers(family)) {
    put_mixed_layers(config, keys, family, layers);
  } else if (family.name == "qwen2moe" || family.name == "glm4moe") {
    config["qkv_bias"] = config["attention_bias"];
    config["use_qk_norm"] = has_tensor(keys.file(), "blk.0.attn_q_norm.weight");
    keys.integer("nextn_predict_layers");
    if (const auto dense = keys.integer("feed_forward_length")) config["intermediate_size"] = *dense;
    keys.expect(keys.integer("attention.sliding_window").value_or(0) == 0, "attention.sliding_window", "none");
  } else if (family.name == "granite" || family.name == "granitemoe") {
    config["embedding_multiplier"] = written(keys.number("embedding_scale").value_or(1));
    config["residual_multiplier"] = written(keys.number("residual_scale").value_or(1));
    const auto scale = keys.number("attention.scale");
    config["attention_multiplier"] = scale ? written(*scale) : json(1 / std::sqrt(static_cast<double>(head_dim)));
    config["logits_scaling"] = written(keys.number("logit_scale").value_or(1));
  } else if (family.name == "gemma3") {
    config["sliding_window"] = keys.required("attention.sliding_window");
    config["rope_local_base_freq"] = keys.number("rope.freq_base_swa").value_or(10000);
    config.erase("hidden_act");
    config["hidden_activation"] = "gelu_pytorch_tanh";
    // Only the model of 27 billion parameters scales scores by the hidden size per head.
    config["query_pre_attn_scalar"] =
        layers == 62 ? config["hidden_size"].get<int64_t>() / config["num_attention_heads"].get<int64_t>() : head_dim;
    json types = json::array();
    for (int64_t i = 0; i < layers; ++i) types.push_back(i % 6 == 5 ? "full_attention" : "sliding_attention");
    config["layer_types"] = std::move(types);
  } else if (family.name == "gpt-oss") {  // llama.cpp has the window in every second layer, from the first on.
    config["sliding_window"] = keys.required("attention.sliding_window");
  } else if (family.name == "smollm3") {
    json uses = json::array();
    for (int64_t i = 0; i < layers; ++i) uses.push_back(i % 4 == 3 ? 0 : 1);
    config["no_rope_layers"] = std::move(uses);
    config["no_rope_layer_interval"] = 4;
  } else if (family.name == "phi3") {
    if (const auto window = keys.integer("attention.sliding_window"); window && *window > 0)
      config["sliding_window"] = *window;
    else
      config["sliding_window"] = nullptr;
  } else {
    keys.expect(keys.integer("attention.sliding_window").value_or(0) == 0, "attention.sliding_window", "none");
  }
}

void put_tokens(json& config, const File& file) {
  for (const auto& [key, name] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token_id"),
                                  std::pair("tokenizer.ggml.eos_token_id", "eos_token_id")}) {
    const auto id = file.integer(key);
    config[name] = id ? json(*id) : json();
  }
}

const char* dtype_of(const File& file) {
  const std::string_view type = tensor(file, "token_embd.weight").type->name;
  return type == "F16" ? "float16" : type == "BF16" ? "bfloat16" : "float32";
}

}  // namespace

json written(double value) { return json::parse(fmt::format("{}", static_cast<float>(value))); }

bool rows_are_paired(std::string_view architecture) {
  const auto* const family = std::ranges::find(kFamilies, architecture, &Family::name);
  return family != kFamilies.end() && family->paired;
}

int64_t further_layers(const File& file) {
  const Family& family = family_of(file);
  const bool has_further = has_mixed_layers(family) || family.name == "glm4moe";
  return has_further ? file.integer(fmt::format("{}.nextn_predict_layers", family.name)).value_or(0) : 0;
}

json config_of(const File& file) {
  const Family& family = family_of(file);
  Keys keys(file, family.name);
  const int64_t further = further_layers(file);
  keys.expect(further >= 0 && further <= kMaxLayers, "nextn_predict_layers", "0 to 1000 layers");
  const int64_t layers = keys.required("block_count") - further, heads = keys.required("attention.head_count"),
                width = keys.required("embedding_length");
  keys.expect(heads > 0 && layers > 0 && layers <= kMaxLayers && width > 0, "block_count",
              "1 to 1000 layers, with heads and width");
  if (family.name == "gemma4") {
    expect_plain(keys);
    json config = gemma4_config(keys, layers);
    config["torch_dtype"] = dtype_of(file);
    put_tokens(config, file);
    keys.refuse_unknown();
    return config;
  }
  const int64_t head_dim = keys.integer("attention.key_length").value_or(width / heads);
  keys.expect(keys.integer("attention.value_length").value_or(head_dim) == head_dim, "attention.value_length",
              "that of keys");
  const int64_t rotary = keys.integer("rope.dimension_count").value_or(head_dim);
  const double theta = keys.number("rope.freq_base").value_or(10000);
  const auto epsilon = keys.number("attention.layer_norm_rms_epsilon");
  keys.expect(epsilon.has_value(), "attention.layer_norm_rms_epsilon", "a number");
  json config = {{"architectures", {family.class_name}},
                 {"model_type", family.model_type},
                 {"hidden_size", width},
                 {"intermediate_size", feed_forward_of(keys, family)},
                 {"num_hidden_layers", layers},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", keys.integer("attention.head_count_kv").value_or(heads)},
                 {"head_dim", head_dim},
                 {"vocab_size", tensor(file, "token_embd.weight").rows},
                 {"max_position_embeddings", keys.required("context_length")},
                 {"rms_norm_eps", written(*epsilon)},
                 {"rope_theta", theta},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", !has_tensor(file, "output.weight")},
                 {"attention_bias", has_tensor(file, "blk.0.attn_q.bias")},
                 {"mlp_bias", has_tensor(file, "blk.0.ffn_gate.bias")},
                 {"torch_dtype", dtype_of(file)}};
  if (rotary != head_dim || has_mixed_layers(family) || family.name == "glm4moe")
    config["partial_rotary_factor"] = static_cast<double>(rotary) / static_cast<double>(head_dim);
  keys.integer("vocab_size");  // This is llama.cpp's own record of the rows of the embedding.
  expect_plain(keys);
  put_experts(config, keys, family, layers);
  put_family(config, keys, family, layers, head_dim);
  if (json scaling = rope_scaling(keys, theta, head_dim); !scaling.is_null()) {
    // Readers of Phi-3 search for it only here.
    if (scaling["rope_type"] == "longrope")
      config["original_max_position_embeddings"] = scaling["original_max_position_embeddings"];
    if (family.name == "gpt-oss") scaling["truncate"] = false;  // llama.cpp rounds the ramp, the model does not.
    config["rope_scaling"] = std::move(scaling);
  }
  put_tokens(config, file);
  keys.refuse_unknown();
  return config;
}

}  // namespace fidelio::gguf
