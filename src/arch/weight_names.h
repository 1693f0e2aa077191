// Names of weights. A linear is LinearId{layer, role}, of an expert LinearId{layer, role, expert}; its short name
// ("layers.3.q", "layers.3.experts.5.gate", "embedding", "head") is the vocabulary of plans, logs and checkpoint metadata, its Hugging Face name is what the tensors are called in a
// safetensors file. Families share the names but for norms, and for matrices that some keep as one (FusedName).
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "arch/model_config.h"

namespace fidelio {

enum class Role : uint8_t { q, k, v, o, gate, up, down, embedding, head };
std::string_view name_of(Role role);

struct LinearId {
  int layer = -1;  // -1 for embedding and head
  Role role = Role::embedding;
  int expert = -1;  // of gate, up and down where a layer has experts
  auto operator<=>(const LinearId&) const = default;
};

// attn and mlp stand before their block, post_attn and post_mlp act on what it adds to the stream, q and k on queries
// and keys, final before the head.
enum class Norm : uint8_t { attn, mlp, post_attn, post_mlp, q, k, final };

std::string to_string(LinearId id);               // "layers.3.q", "layers.3.experts.5.gate", "embedding", "head"
LinearId parse_linear_id(std::string_view text);  // the inverse; throws Error saying what a name looks like

std::string module_name(LinearId id);  // "model.layers.3.self_attn.q_proj", "model.layers.3.mlp.experts.5.gate_proj"
std::string weight_name(LinearId id);  // module + ".weight"
std::string bias_name(LinearId id);    // module + ".bias"
// "model.layers.3.input_layernorm.weight"; the layer of final is ignored. What Llama calls post_attention_layernorm
// stands before the MLP; in families with norms after their blocks the name means what it says.
std::string norm_name(const ModelConfig& config, int layer, Norm norm);
// Of the matrix (E, d) that chooses a layer's experts.
std::string router_name(const ModelConfig& config, int layer);

// The matrix that files keep a linear's rows in, where it is not weight_name(): one of several linears, one under the
// other (Blocks::fused; stacked experts, whose tensors have three dimensions), or its own under another name.
struct FusedName {
  std::string weight;     // "model.layers.3.self_attn.qkv_proj.weight"; empty: weight_name()
  int64_t first_row = 0;  // of the linear
  int64_t rows = 0;       // of the matrix
};
FusedName fused_name(const ModelConfig& config, LinearId id);
// What the family's own files call a linear's module: module_name(), but "model.layers.3.block_sparse_moe.experts.5.w1" in
// Mixtral.
std::string file_module_name(const ModelConfig& config, LinearId id);

}  // namespace fidelio
