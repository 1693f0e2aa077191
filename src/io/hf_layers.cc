// This file reads which layers of a model have delta nets and which have experts, and how these are chosen.
#include <algorithm>
#include <set>

#include "io/hf_keys.h"

namespace fidelio::hf {
namespace {

// Marks layers that have one MLP in place of experts. Where all have, the model is one without experts.
void mark_dense(const std::set<int>& dense, int width, ModelConfig& c) {
  if (dense.empty()) return;
  if (std::ssize(dense) < c.L) {
    c.dense_f = width;
    for (const int i : dense) c.kinds[static_cast<size_t>(i)].dense = true;
    return;
  }
  c.f = width;
  c.experts = c.experts_per_row = c.shared_f = 0;
  c.renormalised = false;
  c.router = {};
}

// Reads which layers of Qwen's mixtures have one MLP in place of experts.
void read_sparse_steps(const Keys& keys, ModelConfig& c) {
  const int step = keys.integer_or("decoder_sparse_step", 1, 1, kMaxInt);
  std::set<int> dense;
  if (const Json* list = keys.find("mlp_only_layers")) {
    const std::string expected = fmt::format("a list of layers from 0 to {}", c.L - 1);
    if (!list->is_array()) keys.refuse("mlp_only_layers", expected);
    for (const Json& layer : *list) {
      if (!layer.is_number_integer() || layer < 0 || layer >= c.L) keys.refuse("mlp_only_layers", expected);
      dense.insert(layer.get<int>());
    }
  }
  for (int i = 0; i < c.L; ++i)
    if (c.experts == 0 || (i + 1) % step != 0) dense.insert(i);
  mark_dense(dense, dense.empty() ? 0 : keys.integer_or("intermediate_size", 5632, 1, kMaxInt), c);
}

// Reads the experts of Qwen3-Next and of Qwen3.5's mixtures.
void read_shared_experts(const Keys& keys, ModelConfig& c) {
  const bool next = c.architecture == Architecture::qwen3_next;
  c.experts = keys.integer_or("num_experts", next ? 512 : 256, next ? 0 : 1, kMaxExperts / c.L);
  if (c.experts > 0) c.experts_per_row = keys.integer_or("num_experts_per_tok", next ? 10 : 8, 1, c.experts);
  c.renormalised = keys.boolean_or("norm_topk_prob", true);
  if (!next && !c.renormalised) keys.refuse("norm_topk_prob", "true (the shares of a row's experts sum to 1 here)");
  c.shared_f = keys.integer_or("shared_expert_intermediate_size", 512, 0, kMaxInt);
  if (next) return read_sparse_steps(keys, c);
  if (keys.integer_or("decoder_sparse_step", 1, 0, kMaxInt) != 1)
    keys.refuse("decoder_sparse_step", "1 (every layer has experts here)");
  if (const Json* dense = keys.find("mlp_only_layers"); dense && (!dense->is_array() || !dense->empty()))
    keys.refuse("mlp_only_layers", "an empty list (every layer has experts here)");
}

// Reads the experts of GLM-4.5 and its successors.
void read_glm(const Keys& keys, ModelConfig& c) {
  const char* key =
      keys.find("n_routed_experts") || !keys.find("num_local_experts") ? "n_routed_experts" : "num_local_experts";
  c.experts = keys.integer_or(key, 128, 2, kMaxExperts / c.L);
  c.renormalised = keys.boolean_or("norm_topk_prob", true);
  Router& r = c.router;
  r.scoring = Scoring::sigmoid, r.corrected = true;
  r.factor = keys.number_or("routed_scaling_factor", 1, 1e-9, 1e9);
  r.groups = keys.integer_or("n_group", 1, 1, c.experts / 2);
  if (c.experts % r.groups != 0) keys.refuse("n_group", fmt::format("a divisor of the {} experts", c.experts));
  r.groups_per_row = keys.integer_or("topk_group", 1, 1, r.groups);
  const int eligible = c.experts / r.groups * r.groups_per_row;
  c.experts_per_row = keys.integer_or("num_experts_per_tok", std::min(8, eligible), 1, eligible);
  c.shared_f = keys.integer_or("n_shared_experts", 1, 0, kMaxInt / c.f) * c.f;
  c.blocks.qk_norm = keys.boolean_or("use_qk_norm", false) ? QkNorm::head : QkNorm::none;
}

}  // namespace

void read_own_routers(const Keys& keys, ModelConfig& c) {
  if (c.architecture == Architecture::glm4_moe) return read_glm(keys, c);
  if (c.architecture == Architecture::qwen2_moe) {
    c.experts = keys.integer_or("num_experts", 60, 0, kMaxExperts / c.L);
    if (c.experts > 0) c.experts_per_row = keys.integer_or("num_experts_per_tok", 4, 1, c.experts);
    c.renormalised = keys.boolean_or("norm_topk_prob", false);
    c.shared_f = keys.integer_or("shared_expert_intermediate_size", 5632, 0, kMaxInt);
    return;
  }
  const char* key = keys.find("num_local_experts") || !keys.find("num_experts") ? "num_local_experts" : "num_experts";
  c.experts = keys.integer_or(key, 256, 1, kMaxExperts / c.L);
  c.experts_per_row = keys.integer_or("num_experts_per_tok", 8, 1, c.experts);
  c.renormalised = true;
  c.router.scoring = Scoring::sigmoid, c.router.corrected = true;
}

void read_dense_layers(const Keys& keys, ModelConfig& c) {
  if (c.architecture == Architecture::qwen2_moe) return read_sparse_steps(keys, c);
  if (c.architecture != Architecture::glm4_moe) return;
  std::set<int> dense;
  const int first = keys.integer_or("first_k_dense_replace", 1, 0, kMaxInt);
  for (int i = 0; i < std::min(first, c.L); ++i) dense.insert(i);
  mark_dense(dense, dense.empty() ? 0 : keys.integer_or("intermediate_size", 10944, 1, kMaxInt), c);
}

void read_mixed_layers(const Keys& keys, ModelConfig& c) {
  constexpr int kMaxHeads = 4096, kMaxHeadDim = 1024, kMaxKernel = 16;  // These are some 16 times those of any model.
  DeltaNet& n = c.delta;
  n.kernel = keys.integer_or("linear_conv_kernel_dim", 4, 1, kMaxKernel);
  n.key_dim = keys.integer_or("linear_key_head_dim", 128, 1, kMaxHeadDim);
  n.value_dim = keys.integer_or("linear_value_head_dim", 128, 1, kMaxHeadDim);
  n.key_heads = keys.integer_or("linear_num_key_heads", 16, 1, kMaxHeads);
  n.value_heads = keys.integer_or("linear_num_value_heads", 32, 1, kMaxHeads);
  if (n.value_heads % n.key_heads != 0)
    keys.refuse("linear_num_value_heads", fmt::format("a multiple of linear_num_key_heads = {}", n.key_heads));
  const std::string gate = keys.text_or("output_gate_type", "swish");
  if (gate != "swish" && gate != "silu" && gate != "sigmoid") keys.refuse("output_gate_type", "swish, silu or sigmoid");
  n.gate = gate == "sigmoid" ? Activation::sigmoid : Activation::silu;
  if (!keys.boolean_or("attn_output_gate", true))
    keys.refuse("attn_output_gate", "true (attention's output has a gate in this family)");

  c.kinds.assign(static_cast<size_t>(c.L), {});
  const Json* types = keys.find("layer_types");
  if (types && (!types->is_array() || types->size() != c.kinds.size()))
    keys.refuse("layer_types", fmt::format("a list of {} strings", c.L));
  const int interval = keys.integer_or("full_attention_interval", 4, 1, kMaxInt);
  for (int i = 0; i < c.L; ++i) {
    bool full = (i + 1) % interval == 0;
    if (types) {
      const Json& type = (*types)[static_cast<size_t>(i)];
      if (type != "full_attention" && type != "linear_attention")
        keys.refuse("layer_types", "full_attention or linear_attention only");
      full = type == "full_attention";
    }
    if (!full) c.kinds[static_cast<size_t>(i)].mixer = Mixer::delta_net;
  }
  if (c.blocks.experts != ExpertFiles::none) read_shared_experts(keys, c);
}

}  // namespace fidelio::hf
