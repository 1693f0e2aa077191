// This file names the weights of a model. A linear is LinearId{layer, role}, or LinearId{layer, role, expert} for one
// of an expert. It has two names: the short one ("layers.3.q", "layers.3.experts.5.gate", "embedding", "head") is
// used in plans, logs and checkpoint metadata; the Hugging Face name is that of its tensors in a safetensors file.
// Families share the names, except for norms and for matrices that some families store as one (FusedName).
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "arch/model_config.h"

namespace fidelio {

// These are the linears of attention, of an MLP or an expert, of a gated delta net and of a shared expert. delta_b,
// delta_a and shared_router are small and decide much, so they stay as they are (is_fixed). `join` belongs to the
// predictor of the token after the next (ModelConfig::predictor), whose layer is kPredictorLayer. per_layer_gate and
// per_layer_out bring a layer's own part of a token's row (ModelConfig::per_layer) into the stream, per_layer_model
// makes another such row of the token's embedding, and per_layer_table is the table of those rows.
enum class Role : uint8_t {
  q,
  k,
  v,
  o,
  gate,
  up,
  down,
  delta_qkv,
  delta_z,
  delta_out,
  shared_gate,
  shared_up,
  shared_down,
  delta_b,
  delta_a,
  shared_router,
  join,
  per_layer_gate,
  per_layer_out,
  per_layer_model,
  per_layer_table,
  embedding,
  head
};
// Tells whether linears of this role are never quantised.
constexpr bool is_fixed(Role role) {
  return role == Role::delta_b || role == Role::delta_a || role == Role::shared_router || role == Role::per_layer_model;
}
// Tells whether linears of this role belong to no layer, so that their layer is -1.
constexpr bool is_outer(Role role) { return role >= Role::per_layer_model; }
// Tells whether a linear of this role is a table, of which steps read the rows of tokens and never a product.
constexpr bool is_table(Role role) { return role == Role::per_layer_table; }
std::string_view name_of(Role role);

struct LinearId {
  int layer = -1;  // -1 for embedding and head
  Role role = Role::embedding;
  int expert = -1;  // the expert of gate, up and down where a layer has experts, otherwise -1
  auto operator<=>(const LinearId&) const = default;
};

// Norm names the norms of a model, its sinks and its scalars. attn and mlp stand before the block of that name,
// post_attn and post_mlp act on what the block adds to the stream, q, k and v act on queries, keys and values, delta
// acts on the heads of a delta net's output, and final stands before the head. token, before and predicted are the
// predictor's: on the token's embedding, on what the row before led to, and before the head.
//
// Where an MLP stands beside experts, router and experts act on what these read, post_dense and post_experts on what
// the two give. post_per_layer acts on what a layer makes of its part of the token's row, and per_layer on each such
// part of what per_layer_model gives.
//
// Two are no norms, but are loaded and stored as norms are: sinks has a logit for each head of a layer (op::Attend),
// and scalar is the one number of Blocks::layer_scalar.
enum class Norm : uint8_t {
  attn,
  mlp,
  post_attn,
  post_mlp,
  q,
  k,
  v,
  delta,
  sinks,
  router,
  post_dense,
  experts,
  post_experts,
  post_per_layer,
  scalar,
  final,
  token,
  before,
  predicted,
  per_layer
};

std::string to_string(LinearId id);  // for example "layers.3.q", "layers.3.experts.5.gate", "embedding", "head"
LinearId parse_linear_id(std::string_view text);  // the inverse; throws Error that tells how a name is formed

// Returns, for example, "model.layers.3.self_attn.q_proj" or "model.layers.3.mlp.experts.5.gate_proj".
std::string module_name(LinearId id);
std::string weight_name(LinearId id);  // module_name() and ".weight"
std::string bias_name(LinearId id);    // module_name() and ".bias"
// Returns a name such as "model.layers.3.input_layernorm.weight"; the layer of `final` is ignored. The tensor that
// Llama calls post_attention_layernorm is the norm before the MLP. In families with norms after their blocks it is
// the norm after attention.
std::string norm_name(const ModelConfig& config, int layer, Norm norm);
// Returns the name of the matrix (E, d) that chooses a layer's experts.
std::string router_name(const ModelConfig& config, int layer);

// A RowRun is `rows` rows of a matrix, each `step` rows behind the one before it.
struct RowRun {
  int64_t first_row = 0, rows = 0, step = 1;
};

// A FusedName tells in which matrix a file keeps the rows of a linear, if not in the tensor weight_name(). The matrix
// can hold several linears, one below the other (Blocks::fused, or stacked experts, whose tensors have three
// dimensions) or interleaved by head (Blocks::delta_fused). It can also be the linear's own matrix under another name.
struct FusedName {
  std::string weight;  // for example "model.layers.3.self_attn.qkv_proj.weight"; if empty, the tensor is weight_name()
  std::vector<RowRun> runs;  // the linear's rows in the matrix, in their order
  int64_t rows = 0;          // the rows of the matrix
  // If true, the file has each expert's part of the matrix by columns: (E, in, rows / E).
  bool by_columns = false;
};
// Returns where a file of this model keeps the rows of a linear.
FusedName fused_name(const ModelConfig& config, LinearId id);
// Returns where it keeps the bias of a linear, if not in the tensor bias_name(): in runs of a tensor of `rows` numbers
// in all.
FusedName fused_bias_name(const ModelConfig& config, LinearId id);
// Returns the module name of a linear in the family's own files. It is module_name(), except in Mixtral, where it is
// for example "model.layers.3.block_sparse_moe.experts.5.w1", and for GLM's shared experts.
std::string file_module_name(const ModelConfig& config, LinearId id);

}  // namespace fidelio
