// This file makes a config.json of the keys and tensors of Gemma 4 in a GGUF file.
#include <algorithm>
#include <cmath>

#include "io/gguf/config.h"
#include "io/gguf/reading/keys.h"

namespace fidelio::gguf {
namespace {

using nlohmann::json;

// The pairs of a head that are not turned have divisors of 1e30 of their frequencies, and the others 1.
double turned_share(const File& file, int64_t head_dim) {
  if (!has_tensor(file, "rope_freqs.weight")) return 1;
  const std::vector<double> divisors = vector_of(file, "rope_freqs.weight");
  const auto turned = std::ranges::find_if(divisors, [](double x) { return x != 1; });
  check(std::ssize(divisors) == head_dim / 2 && std::all_of(turned, divisors.end(), [](double x) { return x > 1e29; }),
        "{}: tensor \"rope_freqs.weight\": expected {} numbers, ones and then 1e30 for pairs that are not turned",
        file.path(), head_dim / 2);
  return static_cast<double>(turned - divisors.begin()) / static_cast<double>(divisors.size());
}

json ropes_of(Keys& keys, int64_t head_dim, int64_t local_head_dim) {
  keys.expect(keys.integer("rope.dimension_count").value_or(head_dim) == head_dim, "rope.dimension_count",
              "attention.key_length");
  keys.expect(keys.integer("rope.dimension_count_swa").value_or(local_head_dim) == local_head_dim,
              "rope.dimension_count_swa", "attention.key_length_swa");
  keys.expect(keys.text("rope.scaling.type").value_or("none") == "none", "rope.scaling.type", "none");
  return {{"sliding_attention",
           {{"rope_type", "default"}, {"rope_theta", keys.number("rope.freq_base_swa").value_or(10000)}}},
          {"full_attention",
           {{"rope_type", "proportional"},
            {"rope_theta", keys.number("rope.freq_base").value_or(1000000)},
            {"partial_rotary_factor", turned_share(keys.file(), head_dim)}}}};
}

// Which layers have a window, and the heads of those that have none.
void put_layers(json& config, Keys& keys, int64_t layers, int64_t head_dim) {
  const auto windows = keys.booleans("attention.sliding_window_pattern");
  keys.expect(windows && std::ssize(*windows) >= layers, "attention.sliding_window_pattern",
              fmt::format("true or false for each of {} layers", layers));
  const std::vector<int64_t> kv_heads = keys.by_layer("attention.head_count_kv", layers),
                             widths = keys.by_layer("feed_forward_length", layers);
  const int64_t shared = keys.integer("attention.shared_kv_layers").value_or(0);
  keys.expect(shared >= 0 && shared < layers, "attention.shared_kv_layers", "fewer than all layers");
  json types = json::array(), own = json::object();
  bool keys_as_values = false;
  for (int64_t i = 0; i < layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool window = (*windows)[at];
    types.push_back(window ? "sliding_attention" : "full_attention");
    if (window)
      config["num_key_value_heads"] = kv_heads[at];
    else
      own[std::to_string(i)] = {{"head_dim", head_dim}, {"num_key_value_heads", kv_heads[at]}};
    if (!window && i < layers - shared && !has_tensor(keys.file(), fmt::format("blk.{}.attn_v.weight", i)))
      keys_as_values = true;
  }
  keys.expect(types.back() == "full_attention", "attention.sliding_window_pattern", "no window in the last layer");
  if (!config.contains("num_key_value_heads")) config["num_key_value_heads"] = kv_heads.front();
  config.update({{"layer_types", types},
                 {"per_layer_config", own},
                 {"attention_k_eq_v", keys_as_values},
                 {"num_kv_shared_layers", shared},
                 {"intermediate_size", widths.front()},
                 {"use_double_wide_mlp", widths.front() != widths.back()}});
}

}  // namespace

json gemma4_config(Keys& keys, int64_t layers) {
  const File& file = keys.file();
  const int64_t head_dim = keys.required("attention.key_length"),
                local_head_dim = keys.integer("attention.key_length_swa").value_or(head_dim);
  keys.expect(keys.integer("attention.value_length").value_or(head_dim) == head_dim &&
                  keys.integer("attention.value_length_swa").value_or(local_head_dim) == local_head_dim,
              "attention.value_length", "that of keys");
  const auto epsilon = keys.number("attention.layer_norm_rms_epsilon");
  keys.expect(epsilon.has_value(), "attention.layer_norm_rms_epsilon", "a number");
  json config = {{"architectures", {"Gemma4ForCausalLM"}},
                 {"model_type", "gemma4_text"},
                 {"hidden_size", keys.required("embedding_length")},
                 {"num_hidden_layers", layers},
                 {"num_attention_heads", keys.required("attention.head_count")},
                 {"head_dim", local_head_dim},
                 {"vocab_size", tensor(file, "token_embd.weight").rows},
                 {"vocab_size_per_layer_input", tensor(file, "token_embd.weight").rows},
                 {"hidden_size_per_layer_input", keys.integer("embedding_length_per_layer_input").value_or(0)},
                 {"max_position_embeddings", keys.required("context_length")},
                 {"sliding_window", keys.required("attention.sliding_window")},
                 {"rms_norm_eps", written(*epsilon)},
                 {"rope_parameters", ropes_of(keys, head_dim, local_head_dim)},
                 {"hidden_activation", "gelu_pytorch_tanh"},
                 {"tie_word_embeddings", !has_tensor(file, "output.weight")},
                 {"attention_bias", has_tensor(file, "blk.0.attn_q.bias")}};
  put_layers(config, keys, layers, head_dim);
  // llama.cpp caps logits at 30 where the key is missing.
  if (const double cap = keys.number("final_logit_softcapping").value_or(30); cap != 0)
    config["final_logit_softcapping"] = written(cap);
  keys.integer("vocab_size");
  const int64_t experts = keys.integer("expert_count").value_or(0),
                used = keys.integer("expert_used_count").value_or(0);
  if (experts == 0) return config;
  config.update({{"enable_moe_block", true},
                 {"num_experts", experts},
                 {"top_k_experts", used},
                 {"moe_intermediate_size", keys.required("expert_feed_forward_length")}});
  return config;
}

}  // namespace fidelio::gguf
