// This file reads how the layers of Gemma 4 differ: in their heads, in whose keys and values they read, and in their
// MLP; and the rows that each layer has for a token.
#include <algorithm>
#include <cmath>

#include "io/hf_keys.h"

namespace fidelio::hf {
namespace {

// These are some 8 times those of any model.
constexpr int kMaxHeadColumns = 4096, kMaxPerLayer = 2048;

// Layers with full attention have heads of their own, by two keys of the whole config, or by the list of what layers
// override, which transformers writes since version 5.24.
void read_heads(const Keys& keys, ModelConfig& c) {
  const bool keys_as_values = keys.boolean_or("attention_k_eq_v", false);
  const auto set = [&](const Keys& from, const char* of_head, const char* of_heads, LayerKind& kind) {
    kind.head_dim = from.integer_or(of_head, kind.head_dim, 2, kMaxHeadColumns);
    if (kind.head_dim % 2 != 0) from.refuse(of_head, "an even number (RoPE turns pairs)");
    kind.kv_heads = from.integer_or(of_heads, kind.kv_heads, 1, c.h);
    if (c.h % kind.kv_heads != 0) from.refuse(of_heads, fmt::format("a divisor of num_attention_heads = {}", c.h));
  };
  const Json* own = keys.find("per_layer_config");
  if (own && !own->is_object()) keys.refuse("per_layer_config", "an object");
  for (size_t i = 0; i < c.kinds.size(); ++i) {
    LayerKind& kind = c.kinds[i];
    kind.head_dim = c.e, kind.kv_heads = c.hk;
    if (kind.window > 0) continue;
    kind.keys_as_values = keys_as_values;
    if (own) continue;
    kind.head_dim = 512;
    set(keys, "global_head_dim", keys_as_values ? "num_global_key_value_heads" : "num_key_value_heads", kind);
  }
  if (!own) return;
  for (const auto& [name, overrides] : own->items()) {
    const bool number =
        !name.empty() && name.size() < 6 && std::ranges::all_of(name, [](char x) { return x >= '0' && x <= '9'; });
    if (!number || std::stoi(name) >= c.L || !overrides.is_object())
      keys.refuse("per_layer_config", fmt::format("an object of layers from 0 to {}", c.L - 1));
    const Keys layer(overrides, keys.where() + ": per_layer_config: " + name);
    for (const auto& [key, value] : overrides.items())
      if (key != "head_dim" && key != "num_key_value_heads")
        layer.refuse(key.c_str(), "nothing (layers differ in head_dim and num_key_value_heads here)");
    set(layer, "head_dim", "num_key_value_heads", c.kinds[std::stoul(name)]);
  }
}

// The last layers read the keys and values of the last layer before them that has a window too, or has none.
void read_shared_keys(const Keys& keys, ModelConfig& c) {
  const int shared = keys.integer_or("num_kv_shared_layers", 0, 0, c.L - 1);
  const bool wide = keys.boolean_or("use_double_wide_mlp", false);
  for (int i = c.L - shared; i < c.L; ++i) {
    LayerKind& kind = c.kinds[static_cast<size_t>(i)];
    int from = c.L - shared - 1;
    while (from >= 0 && (c.kinds[static_cast<size_t>(from)].window > 0) != (kind.window > 0)) --from;
    const LayerKind* source = from < 0 ? nullptr : &c.kinds[static_cast<size_t>(from)];
    if (!source || source->head_dim != kind.head_dim || source->kv_heads != kind.kv_heads)
      keys.refuse("num_kv_shared_layers",
                  fmt::format("fewer layers: the layers before have no keys and values like those of layer {}", i));
    kind.keys_of = from;
    kind.keys_as_values = false;
    if (!wide) continue;
    if (c.f > kMaxInt / 2) keys.refuse("intermediate_size", "a number that can be doubled (use_double_wide_mlp)");
    kind.ffn = 2 * c.f;
  }
}

void read_gemma4_experts(const Keys& keys, ModelConfig& c) {
  if (!keys.boolean_or("enable_moe_block", false)) return;
  if (std::ranges::any_of(c.kinds, [](const LayerKind& kind) { return kind.ffn > 0; }))
    keys.refuse("use_double_wide_mlp", "false beside enable_moe_block");
  c.experts = keys.integer("num_experts", 1, kMaxExperts / c.L);
  c.experts_per_row = keys.integer("top_k_experts", 1, c.experts);
  c.renormalised = true;
  c.router.scaled = true;
  c.shared_f = c.f;
  c.f = keys.integer("moe_intermediate_size", 1, kMaxInt);
}

}  // namespace

void read_gemma4_layers(const Keys& keys, ModelConfig& c) {
  c.kinds.assign(static_cast<size_t>(c.L), {});
  const Json* types = keys.find("layer_types");
  if (types && (!types->is_array() || types->size() != c.kinds.size()))
    keys.refuse("layer_types", fmt::format("a list of {} strings", c.L));
  constexpr int kPattern = 6;  // Every sixth layer has full attention where no list says otherwise.
  const int window = keys.integer_or("sliding_window", 512, 1, kMaxInt);
  for (int i = 0; i < c.L; ++i) {
    bool full = (i + 1) % kPattern == 0;
    if (types) {
      const Json& type = (*types)[static_cast<size_t>(i)];
      if (type != "full_attention" && type != "sliding_attention")
        keys.refuse("layer_types", "full_attention or sliding_attention only");
      full = type == "full_attention";
    }
    if (full || i == c.L - 1) continue;  // The last layer has full attention whatever its type says.
    c.kinds[static_cast<size_t>(i)].window = window;
    c.kinds[static_cast<size_t>(i)].rope = RopeUse::local;
  }
  c.sliding_window = c.L > 1 ? window : 0;
  read_heads(keys, c);
  read_shared_keys(keys, c);
  read_gemma4_experts(keys, c);
  c.per_layer = keys.integer_or("hidden_size_per_layer_input", 256, 0, kMaxPerLayer);
  if (c.per_layer > 0 && keys.integer_or("vocab_size_per_layer_input", 262144, 1, kMaxInt) != c.v)
    keys.refuse("vocab_size_per_layer_input", fmt::format("vocab_size = {}", c.v));
  if (c.per_layer > 0 && c.experts > 0) keys.refuse("hidden_size_per_layer_input", "0 beside enable_moe_block");
  if (const std::string both = keys.text_or("use_bidirectional_attention", "vision"); both != "vision")
    keys.refuse("use_bidirectional_attention", "vision or null (a position of text sees those before it)");
  c.logit_cap = keys.number_or("final_logit_softcapping", 0, 1e-6, 1e9);
}

}  // namespace fidelio::hf
