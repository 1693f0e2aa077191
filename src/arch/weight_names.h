// Names of weights. A linear is LinearId{layer, role}; its short name ("layers.3.q", "embedding", "head") is the
// vocabulary of plans, logs and checkpoint metadata, its Hugging Face name is what the tensors are called in a
// safetensors file. The four families of model_config.h share all names.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace fidelio {

enum class Role : uint8_t { q, k, v, o, gate, up, down, embedding, head };
std::string_view name_of(Role role);

struct LinearId {
  int layer = -1;  // -1 for embedding and head
  Role role = Role::embedding;
  auto operator<=>(const LinearId&) const = default;
};

// attn and mlp stand before their block, q and k act per head (Qwen3), final before the head.
enum class Norm : uint8_t { attn, mlp, q, k, final };

std::string to_string(LinearId id);               // "layers.3.q", "embedding", "head"
LinearId parse_linear_id(std::string_view text);  // the inverse; throws Error saying what a name looks like

std::string module_name(LinearId id);         // "model.layers.3.self_attn.q_proj"
std::string weight_name(LinearId id);         // module + ".weight"
std::string bias_name(LinearId id);           // module + ".bias"
std::string norm_name(int layer, Norm norm);  // "model.layers.3.input_layernorm.weight"; the layer of final is ignored

}  // namespace fidelio
