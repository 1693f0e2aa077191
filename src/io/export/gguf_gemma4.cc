// This file puts Gemma 4's keys, and the divisors of its frequencies, into a GGUF file.
#include <algorithm>

#include "io/export/gguf.h"

namespace fidelio::exporting {
namespace {

// Returns the first layer that has a window, or that has none; -1 if no layer does.
int first_layer(const ModelConfig& c, bool window) {
  for (int i = 0; i < c.L; ++i)
    if ((kind_of(c, i).window > 0) == window) return i;
  return -1;
}

bool heads_differ(const ModelConfig& c, bool window) {
  const int first = first_layer(c, window);
  for (int i = 0; i < c.L; ++i)
    if ((kind_of(c, i).window > 0) == window && head_dim_of(c, i) != head_dim_of(c, first)) return true;
  return false;
}

}  // namespace

void check_gemma4_model(const ModelConfig& c, const std::function<void(bool, const char*)>& no) {
  no(c.qkv_bias || c.o_bias, "biases on q, k, v and o");
  no(heads_differ(c, true) || heads_differ(c, false), "heads that differ among layers of one kind");
  no(c.local_rope->type != RopeType::plain ||
         (c.rope.type != RopeType::plain && c.rope.type != RopeType::proportional) || c.rope.factor != 1,
     "other ropes than the default and the proportional one without a factor");
  for (int i = 0; i < c.L; ++i) {
    const LayerKind kind = kind_of(c, i);
    if (kind.keys_of < 0) continue;
    const int own = static_cast<int>(caching_layers(c).size());  // llama.cpp finds the layer by its place.
    no(kind.keys_of != own - (kind.window > 0 ? 2 : 1),
       "keys and values of other layers than the last two with their own, one with a window and one without,");
  }
}

void put_gemma4(GgufKeys& keys, const ModelConfig& c, const std::string& prefix) {
  const auto put = [&](const char* name, int64_t value) { keys.put_u32(prefix + name, static_cast<uint32_t>(value)); };
  const int full = first_layer(c, false), local = first_layer(c, true) < 0 ? full : first_layer(c, true);
  std::vector<bool> windows;
  std::vector<int32_t> kv_heads, widths;
  int32_t shared = 0;
  for (int i = 0; i < c.L; ++i) {
    windows.push_back(kind_of(c, i).window > 0);
    kv_heads.push_back(kv_heads_of(c, i));
    widths.push_back(c.experts > 0 ? c.shared_f : ffn_columns(c, i));
    shared += kind_of(c, i).keys_of >= 0 ? 1 : 0;
  }
  for (const auto& [name, layer] : {std::pair("", full), std::pair("_swa", local)}) {
    const auto with = [&](const char* key) { return std::string(key) + name; };
    put(with("attention.key_length").c_str(), head_dim_of(c, layer));
    put(with("attention.value_length").c_str(), head_dim_of(c, layer));
    put(with("rope.dimension_count").c_str(), head_dim_of(c, layer));
  }
  keys.put_i32s(prefix + "attention.head_count_kv", kv_heads);
  if (std::ranges::all_of(widths, [&](int32_t width) { return width == widths.front(); }))
    put("feed_forward_length", widths.front());
  else
    keys.put_i32s(prefix + "feed_forward_length", widths);
  keys.put_bools(prefix + "attention.sliding_window_pattern", windows);
  put("attention.sliding_window", c.sliding_window > 0 ? c.sliding_window : c.max_positions);
  put("attention.shared_kv_layers", shared);
  put("embedding_length_per_layer_input", c.per_layer);
  keys.put_f32(prefix + "rope.freq_base_swa", static_cast<float>(c.local_rope->theta));
  keys.put_f32(prefix + "final_logit_softcapping", static_cast<float>(c.logit_cap));
}

std::vector<float> gemma4_divisors(const ModelConfig& c) {
  const std::vector<float> frequencies = rope_inverse_frequencies(c.rope, head_dim_of(c, c.L - 1));
  std::vector<float> divisors;
  for (const float frequency : frequencies) divisors.push_back(frequency == 0 ? 1e30f : 1.0f);
  return divisors;
}

}  // namespace fidelio::exporting
