#include "app/bench/shapes.h"

#include <nlohmann/json.hpp>

namespace fidelio::app {

nlohmann::json hf_config_of(const NamedShape& s) {
  nlohmann::json config = {{"architectures", {s.architecture}},
                           {"model_type", s.model_type},
                           {"hidden_size", s.d},
                           {"intermediate_size", s.f},
                           {"num_hidden_layers", s.L},
                           {"num_attention_heads", s.h},
                           {"num_key_value_heads", s.hk},
                           {"head_dim", s.e},
                           {"vocab_size", s.v},
                           {"max_position_embeddings", s.context},
                           {"rms_norm_eps", s.eps},
                           {"rope_theta", s.theta},
                           {"tie_word_embeddings", s.tied},
                           {"hidden_act", "silu"},
                           {"attention_bias", std::string_view(s.model_type) == "gpt_oss"},
                           {"torch_dtype", "bfloat16"},
                           {"bos_token_id", 1},
                           {"eos_token_id", 2}};
  if (s.experts > 0) {
    config["num_experts"] = s.experts, config["num_experts_per_tok"] = s.experts_per_row;
    config["moe_intermediate_size"] = s.f;
    config["norm_topk_prob"] = std::string_view(s.model_type) != "olmoe";
    if (s.shared_f > 0) config["shared_expert_intermediate_size"] = s.shared_f;
  }
  if (s.delta_values > 0)
    config.update({{"linear_num_key_heads", s.delta_keys},
                   {"linear_num_value_heads", s.delta_values},
                   {"linear_key_head_dim", kDeltaHeadColumns},
                   {"linear_value_head_dim", kDeltaHeadColumns},
                   {"linear_conv_kernel_dim", 4},
                   {"full_attention_interval", 4},
                   {"partial_rotary_factor", 0.25}});
  return config;
}

}  // namespace fidelio::app
