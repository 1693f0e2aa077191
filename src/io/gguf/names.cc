#include "io/gguf/names.h"

#include <algorithm>

#include <fmt/format.h>

namespace fidelio::gguf {

namespace {

std::string_view in_mlp(Role role) {
  return role == Role::gate ? "ffn_gate" : role == Role::up ? "ffn_up" : "ffn_down";
}

}  // namespace

std::string tensor_name(const ModelConfig& config, LinearId asked) {
  const LinearId id = id_in_file(config, asked);
  const bool beside = config.blocks.experts == ExpertFiles::beside;
  if (id.expert >= 0) return fmt::format("blk.{}.{}_exps", id.layer, in_mlp(id.role));
  switch (id.role) {
    case Role::embedding:
      return "token_embd";
    case Role::head:
      return "output";
    case Role::q:
      return fmt::format("blk.{}.attn_q", id.layer);
    case Role::k:
      return fmt::format("blk.{}.attn_k", id.layer);
    case Role::v:
      return fmt::format("blk.{}.attn_v", id.layer);
    case Role::o:
      return fmt::format("blk.{}.attn_output", id.layer);
    case Role::delta_qkv:
      return fmt::format("blk.{}.attn_qkv", id.layer);
    case Role::delta_z:
      return fmt::format("blk.{}.attn_gate", id.layer);
    case Role::delta_out:
      return fmt::format("blk.{}.ssm_out", id.layer);
    case Role::delta_b:
      return fmt::format("blk.{}.ssm_beta", id.layer);
    case Role::delta_a:
      return fmt::format("blk.{}.ssm_alpha", id.layer);
    case Role::shared_gate:
      return fmt::format("blk.{}.ffn_gate{}", id.layer, beside ? "" : "_shexp");
    case Role::shared_up:
      return fmt::format("blk.{}.ffn_up{}", id.layer, beside ? "" : "_shexp");
    case Role::shared_down:
      return fmt::format("blk.{}.ffn_down{}", id.layer, beside ? "" : "_shexp");
    case Role::shared_router:
      return fmt::format("blk.{}.ffn_gate_inp_shexp", id.layer);
    case Role::per_layer_gate:
      return fmt::format("blk.{}.inp_gate", id.layer);
    case Role::per_layer_out:
      return fmt::format("blk.{}.proj", id.layer);
    case Role::per_layer_model:
      return "per_layer_model_proj";
    case Role::per_layer_table:
      return "per_layer_token_embd";
    case Role::join:
      return fmt::format("blk.{}.nextn.eh_proj", id.layer);
    case Role::gate:
    case Role::up:
    case Role::down:
      break;
  }
  return fmt::format("blk.{}.{}", id.layer, in_mlp(id.role));
}

std::string older_expert_name(LinearId id) { return fmt::format("blk.{}.{}.{}", id.layer, in_mlp(id.role), id.expert); }

std::string router_tensor_name(int layer) { return fmt::format("blk.{}.ffn_gate_inp.weight", layer); }

std::string router_tensor_name(int layer, RouterTensor which) {
  constexpr std::string_view kNames[] = {"ffn_gate_inp.bias", "exp_probs_b.bias", "ffn_down_exps.scale"};
  return fmt::format("blk.{}.{}", layer, kNames[static_cast<size_t>(which)]);
}

std::string fused_gates_name(int layer) { return fmt::format("blk.{}.ssm_ba", layer); }

std::string tensor_name(int layer, DeltaTensor which) {
  constexpr std::string_view kNames[] = {"ssm_conv1d.weight", "ssm_a", "ssm_dt.bias"};
  return fmt::format("blk.{}.{}", layer, kNames[static_cast<size_t>(which)]);
}

namespace {

// In these families the norm before the MLP is called as the one after attention.
bool names_norm_by_attention(const ModelConfig& config) {
  return config.blocks.attention_gate || config.blocks.sinks || config.architecture == Architecture::glm4_moe;
}

}  // namespace

std::string tensor_name(const ModelConfig& config, int its_layer, Norm norm) {
  const int layer = layer_in_file(config, its_layer);
  switch (norm) {
    case Norm::attn:
      return fmt::format("blk.{}.attn_norm.weight", layer);
    case Norm::mlp:
      return fmt::format("blk.{}.{}.weight", layer,
                         names_norm_by_attention(config) ? "post_attention_norm" : "ffn_norm");
    case Norm::post_attn:
      return fmt::format("blk.{}.post_attention_norm.weight", layer);
    case Norm::post_mlp:
      return fmt::format("blk.{}.post_ffw_norm.weight", layer);
    case Norm::q:
      return fmt::format("blk.{}.attn_q_norm.weight", layer);
    case Norm::k:
      return fmt::format("blk.{}.attn_k_norm.weight", layer);
    case Norm::v:
      break;  // It has no weight.
    case Norm::router:
      return fmt::format("blk.{}.ffn_gate_inp.scale", layer);
    case Norm::post_dense:
      return fmt::format("blk.{}.post_ffw_norm_1.weight", layer);
    case Norm::experts:
      return fmt::format("blk.{}.pre_ffw_norm_2.weight", layer);
    case Norm::post_experts:
      return fmt::format("blk.{}.post_ffw_norm_2.weight", layer);
    case Norm::post_per_layer:
      return fmt::format("blk.{}.post_norm.weight", layer);
    case Norm::scalar:
      return fmt::format("blk.{}.layer_output_scale.weight", layer);
    case Norm::per_layer:
      return "per_layer_proj_norm.weight";
    case Norm::delta:
      return fmt::format("blk.{}.ssm_norm.weight", layer);
    case Norm::sinks:
      return fmt::format("blk.{}.attn_sinks.weight", layer);
    case Norm::token:
      return fmt::format("blk.{}.nextn.enorm.weight", config.L);
    case Norm::before:
      return fmt::format("blk.{}.nextn.hnorm.weight", config.L);
    case Norm::predicted:
      return fmt::format("blk.{}.nextn.shared_head_norm.weight", config.L);
    case Norm::final:
      break;
  }
  return "output_norm.weight";
}

bool ends_an_answer(std::string_view token) {
  static constexpr std::string_view kEnds[] = {"<|eot_id|>",    "<|eom_id|>",    "<|im_end|>",         "<|end|>",
                                               "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",    "<EOT>",
                                               "_<EOT>",        "[EOT]",         "<end_of_utterance>", "<|return|>",
                                               "<|call|>",      "<turn|>",       "<|tool_response>"};
  return std::find(std::begin(kEnds), std::end(kEnds), token) != std::end(kEnds);
}

}  // namespace fidelio::gguf
