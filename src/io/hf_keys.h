// This file reads config.json key by key. Only the hf_*.cc files include it.
#pragma once
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "arch/model_config.h"
#include "core/error.h"
#include "core/foreign/foreign_text.h"

namespace fidelio::hf {

using Json = nlohmann::json;
constexpr int kMaxInt = std::numeric_limits<int>::max();
// This counts the experts of all layers and is far above any model (Qwen3-235B has 12,032).
constexpr int kMaxExperts = 65536;

// This wraps one JSON object; its messages name file, key, expected and got. null counts as absent, as in transformers.
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

// These families have delta nets, and a shared expert where they have experts.
inline bool has_mixed_layers(Architecture architecture) {
  return architecture == Architecture::qwen3_next || architecture == Architecture::qwen3_5 ||
         architecture == Architecture::qwen3_5_moe;
}
// Reads the numbers of delta nets, which layers have one, and the experts of these families.
void read_mixed_layers(const Keys& keys, ModelConfig& c);
// These mixtures choose experts by laws of their own, or have experts in some layers alone.
inline bool has_own_routers(Architecture architecture) {
  return architecture == Architecture::qwen2_moe || architecture == Architecture::glm4_moe ||
         architecture == Architecture::minimax_m2;
}
// Reads their experts and routers. read_dense_layers() then marks the layers that have none, in `kinds`.
void read_own_routers(const Keys& keys, ModelConfig& c);
void read_dense_layers(const Keys& keys, ModelConfig& c);
// Reads how the layers of Gemma 4 differ, its experts, and its embeddings for each layer.
void read_gemma4_layers(const Keys& keys, ModelConfig& c);
// Fills rope, local_rope, rotary and query_growth. architecture, e and max_positions must be set already.
void read_ropes(const Keys& keys, ModelConfig& c);
// Raises max_positions to the context that the rope reaches, as vLLM computes it. The documentation of transformers
// tells people to switch on yarn and linear scaling in config.json and to leave max_position_embeddings unchanged. The
// context of llama3 and longrope is in the file already, and so is Gemma 3's with its linear scaling. Dynamic scaling
// is computed up to max_position_embeddings.
void stretch_context(ModelConfig& c);

}  // namespace fidelio::hf
