// This file reads the rotary positions of a config.json: rope_theta and rope_scaling (transformers 4), or
// rope_parameters (5).
#include "io/hf_keys.h"

namespace fidelio::hf {
namespace {

void read_llama3(const Keys& keys, Rope& rope) {
  rope.low_freq_factor = keys.number("low_freq_factor", 1e-6, 1e6);
  rope.high_freq_factor = keys.number("high_freq_factor", 1e-6, 1e6);
  if (rope.high_freq_factor <= rope.low_freq_factor) keys.refuse("high_freq_factor", "a number above low_freq_factor");
}

// The factor on cos and sin is given, or follows from the stretch (Peng et al. 2023, equation 22), or is DeepSeek's
// ratio of two such factors.
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

std::vector<double> read_divisors(const Keys& keys, const char* key, int pairs) {
  const Json* list = keys.find(key);
  const std::string expected = fmt::format("a list of {} numbers above 0, one a pair of columns", pairs);
  if (!list || !list->is_array() || list->size() != static_cast<size_t>(pairs)) keys.refuse(key, expected);
  std::vector<double> divisors;
  for (const Json& value : *list) {
    if (!value.is_number() || !(value.get<double>() >= 1e-6 && value.get<double>() <= 1e9)) keys.refuse(key, expected);
    divisors.push_back(value.get<double>());
  }
  return divisors;
}

// The factor on cos and sin is given or follows from the stretch (Ding et al. 2024, as in Phi-3's own code).
void read_longrope(const Keys& keys, int pairs, int max_positions, Rope& rope) {
  rope.short_divisors = read_divisors(keys, "short_factor", pairs);
  rope.long_divisors = read_divisors(keys, "long_factor", pairs);
  const double original = rope.original_max_positions;
  rope.factor = keys.number_or("factor", max_positions / original, 1e-6, 1e6);
  const double derived = rope.factor <= 1 ? 1 : std::sqrt(1 + std::log(rope.factor) / std::log(original));
  rope.attention_factor = keys.number_or("attention_factor", derived, 1e-6, 1e6);
}

RopeType type_of(const ModelConfig& c, const Keys& scaling, const char* key) {
  const std::string type = scaling.text_or(key, "default");
  if (type == "default") return RopeType::plain;
  if (type == "longrope") return RopeType::longrope;
  const bool phi = c.architecture == Architecture::phi3, gemma4 = c.architecture == Architecture::gemma4;
  if (gemma4 && type == "proportional") return RopeType::proportional;
  if (phi && (type == "su" || type == "yarn")) return RopeType::longrope;  // These are earlier names.
  if (!phi && type == "linear") return RopeType::linear;
  if (!phi && type == "dynamic") return RopeType::dynamic;
  if (!phi && type == "llama3") return RopeType::llama3;
  if (!phi && type == "yarn") return RopeType::yarn;
  if (gemma4) scaling.refuse(key, "one of default, proportional, linear, dynamic, llama3, yarn, longrope");
  scaling.refuse(key, phi ? "one of default, longrope" : "one of default, linear, dynamic, llama3, yarn, longrope");
}

// `scaling` is rope_scaling, rope_parameters, the part of one layer type in that, or an empty object.
Rope read_rope(const Keys& top, const Keys& scaling, double theta, const ModelConfig& c) {
  for (const auto& [key, value] : scaling.json().items())
    check(!value.is_object(),
          "{}: rope parameters per layer type (\"{}\") are not supported for {}: expected one set for all layers; "
          "supported are those of Gemma3ForCausalLM, Gemma4ForCausalLM and Olmo3ForCausalLM",
          scaling.where(), key, name_of(c.architecture));
  Rope rope;
  const Keys& theta_from = scaling.find("rope_theta") ? scaling : top;
  rope.theta = theta_from.number_or("rope_theta", theta, 1.000001, 1e30);

  const char* key = scaling.find("rope_type") ? "rope_type" : "type";
  rope.type = type_of(c, scaling, key);
  if (rope.type == RopeType::dynamic)
    scaling.number("factor", 1, 1e6);  // Some configs have an "alpha" in its place, which is another rope.
  if (rope.type == RopeType::plain || rope.type == RopeType::dynamic) return rope;
  if (rope.type == RopeType::proportional) {
    rope.turned_share = scaling.number_or("partial_rotary_factor", 1, 0, 1);
    rope.factor = scaling.number_or("factor", 1, 1e-6, 1e6);
    return rope;
  }
  if (rope.type != RopeType::linear) {
    // transformers prefers the config's own value, and Phi-3's config has one where the file has none.
    const bool phi = c.architecture == Architecture::phi3;
    const Keys& from = phi || top.find("original_max_position_embeddings") ? top : scaling;
    const int otherwise = phi ? 4096 : c.max_positions;
    const int least = rope.type == RopeType::longrope ? 2 : 1;  // The code divides by its logarithm.
    rope.original_max_positions = from.integer_or("original_max_position_embeddings", otherwise, least, kMaxInt);
    if (rope.original_max_positions < least) from.refuse("original_max_position_embeddings", "an integer above 1");
  }
  if (rope.type == RopeType::longrope) {
    read_longrope(scaling, rotary_columns(c) / 2, c.max_positions, rope);
    return rope;
  }
  // Only yarn may leave the factor open by an explicit null; it is then the ratio of the two context lengths.
  const bool ratio = rope.type == RopeType::yarn && scaling.present_even_if_null("factor") && !scaling.find("factor");
  rope.factor =
      ratio ? static_cast<double>(c.max_positions) / rope.original_max_positions : scaling.number("factor", 1, 1e6);
  if (rope.type == RopeType::llama3) read_llama3(scaling, rope);
  if (rope.type == RopeType::yarn) read_yarn(scaling, rope);
  return rope;
}

// transformers prefers a non-empty rope_scaling.
const char* scaling_key(const Keys& keys) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = keys.find(key);
    if (!value) continue;
    if (!value->is_object()) keys.refuse(key, "an object or null");
    if (!value->empty()) return key;
  }
  return nullptr;
}

const Json& empty() {
  static const Json none = Json::object();
  return none;
}
Keys part(const Keys& keys, const char* key) {
  const Json* value = key ? keys.find(key) : nullptr;
  return value ? Keys(*value, keys.where() + ": " + key) : Keys(empty(), keys.where());
}

// Gemma 3 and 4 and OLMo 3 have one rope for layers with full attention and one for layers with a window.
void read_two_ropes(const Keys& keys, ModelConfig& c) {
  static const Json kGemma4 = {
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
      {"full_attention", {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}}};
  const bool gemma4 = c.architecture == Architecture::gemma4, gemma = gemma4 || c.architecture == Architecture::gemma3;
  const double global = keys.number_or("rope_theta", gemma ? 1e6 : 5e5, 1.000001, 1e30);
  const double local = gemma ? keys.number_or("rope_local_base_freq", 1e4, 1.000001, 1e30) : 5e5;
  c.local_rope.emplace();
  const Json* both = keys.find("rope_parameters");
  if (gemma4 && !both) both = &kGemma4;
  if (both && both->is_object() && (both->contains("full_attention") || both->contains("sliding_attention"))) {
    const Keys parameters(*both, keys.where() + ": rope_parameters"), nothing(empty(), keys.where());
    if (const Json* older = keys.find("rope_scaling"); older && !older->empty())
      keys.refuse("rope_scaling", "nothing beside \"rope_parameters\" of each layer type");
    for (const char* key : {"full_attention", "sliding_attention"}) {
      if (const Json* one = parameters.find(key); one && !one->is_object()) parameters.refuse(key, "an object");
      const bool full = key == std::string_view("full_attention");
      // The config's own theta holds where a layer type names none, except for OLMo 3's windows.
      Rope rope = read_rope(nothing, part(parameters, key), full ? global : local, c);
      (full ? c.rope : *c.local_rope) = std::move(rope);
    }
    return;
  }
  if (both && !both->empty()) keys.refuse("rope_parameters", "an object with full_attention and sliding_attention");
  // In transformers 4, rope_scaling applies only to layers with full attention.
  c.rope = read_rope(keys, part(keys, scaling_key(keys)), global, c);
  c.local_rope->theta = gemma ? local : c.rope.theta;
}

}  // namespace

void stretch_context(ModelConfig& c) {
  const Rope& rope = c.rope;
  double context = c.max_positions;
  if (rope.type == RopeType::yarn) context = std::max(context, rope.factor * rope.original_max_positions);
  if (rope.type == RopeType::linear && c.architecture != Architecture::gemma3) context *= rope.factor;
  c.max_positions = static_cast<int>(std::min<double>(context, kMaxInt));
}

void read_ropes(const Keys& keys, ModelConfig& c) {
  const char* key = scaling_key(keys);
  const Keys scaling = part(keys, key);
  const Keys& partial_from = scaling.find("partial_rotary_factor") ? scaling : keys;
  const bool mixed = has_mixed_layers(c.architecture), glm = c.architecture == Architecture::glm4_moe,
             minimax = c.architecture == Architecture::minimax_m2;
  double otherwise = mixed ? 0.25 : glm ? 0.5 : 1;
  if (minimax) otherwise = static_cast<double>(keys.integer_or("rotary_dim", c.e, 2, c.e)) / c.e;
  const double partial = partial_from.number_or("partial_rotary_factor", otherwise, 0, 1);
  if (mixed || glm || minimax || c.architecture == Architecture::phi3) {
    const int columns = static_cast<int>(c.e * partial);
    if (columns < 2 || columns % 2 != 0)
      partial_from.refuse("partial_rotary_factor", fmt::format("an even number of the {} columns of a head", c.e));
    c.rotary = columns == c.e ? 0 : columns;
  } else if (partial != 1) {
    partial_from.refuse(
        "partial_rotary_factor",
        "1 (RoPE over the whole head; a part of it is supported for Phi-3, Qwen3.5, GLM-4.5 and MiniMax-M2)");
  }
  if (c.architecture == Architecture::gemma3 || c.architecture == Architecture::gemma4 ||
      c.architecture == Architecture::olmo3)
    return read_two_ropes(keys, c);

  if (c.architecture == Architecture::ministral3 && !key) {  // This is transformers' default.
    static const Json kDefault = {{"type", "yarn"},        {"rope_theta", 1e6},
                                  {"factor", 16.0},        {"mscale", 1.0},
                                  {"mscale_all_dim", 1.0}, {"original_max_position_embeddings", 16384}};
    c.rope = read_rope(keys, Keys(kDefault, keys.where()), 1e4, c);
    c.query_growth = 0.1;
    return;
  }
  if (c.architecture == Architecture::gpt_oss && !key) {  // This is transformers' default, too.
    static const Json kDefault = {{"rope_type", "yarn"}, {"factor", 32.0},
                                  {"beta_fast", 32.0},   {"beta_slow", 1.0},
                                  {"truncate", false},   {"original_max_position_embeddings", 4096}};
    c.rope = read_rope(keys, Keys(kDefault, keys.where()), 1.5e5, c);
    return;
  }
  const double theta = c.architecture == Architecture::smollm3   ? 2e6
                       : c.architecture == Architecture::gpt_oss ? 1.5e5
                       : minimax                                 ? 5e6
                                                                 : 1e4;
  c.rope = read_rope(keys, scaling, theta, c);
  if (c.architecture == Architecture::ministral3) {
    c.query_growth = scaling.number_or("llama_4_scaling_beta", 0, 0, 1e3);
    if (c.query_growth != 0 && c.rope.original_max_positions == 0)
      c.rope.original_max_positions = scaling.integer("original_max_position_embeddings", 1, kMaxInt);
  } else if (scaling.find("llama_4_scaling_beta")) {
    scaling.refuse("llama_4_scaling_beta", "nothing (it is supported for Ministral3ForCausalLM)");
  }
}

}  // namespace fidelio::hf
