// This fixture writes models of random weights that have layers of both kinds, gated delta nets and attention, with one
// MLP or with experts and a shared one, and the block that predicts a token more. Their tokenizer is quill-1m's.
#pragma once
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/rng.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "io/safetensors.h"

namespace fidelio {

inline nlohmann::json hybrid_config(bool experts) {
  nlohmann::json config = {{"architectures", {experts ? "Qwen3_5MoeForCausalLM" : "Qwen3_5ForCausalLM"}},
                           {"model_type", experts ? "qwen3_5_moe_text" : "qwen3_5_text"},
                           {"hidden_size", 64},
                           {"intermediate_size", 96},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", 2},
                           {"num_key_value_heads", 1},
                           {"head_dim", 32},
                           {"vocab_size", 2048},
                           {"max_position_embeddings", 512},
                           {"rms_norm_eps", 1e-6},
                           {"rope_theta", 1e4},
                           {"partial_rotary_factor", 0.25},
                           {"tie_word_embeddings", false},
                           {"hidden_act", "silu"},
                           {"full_attention_interval", 2},
                           {"linear_num_key_heads", 2},
                           {"linear_num_value_heads", 4},
                           {"linear_key_head_dim", 16},
                           {"linear_value_head_dim", 24},
                           {"linear_conv_kernel_dim", 4},
                           {"torch_dtype", "bfloat16"}};
  if (experts)
    config.update({{"num_experts", 3},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 32},
                   {"shared_expert_intermediate_size", 48}});
  return config;
}

// Linears keep the size of their input. Norms are stored less one, except those of delta nets.
inline void write_hybrid(const std::string& folder, bool experts, nlohmann::json more = nlohmann::json::object()) {
  std::filesystem::create_directories(folder);
  nlohmann::json config = hybrid_config(experts);
  config.update(more);
  write_file_atomically(folder + "/config.json", config.dump());
  copy_companions(Checkpoint::open(FIDELIO_SOURCE_DIR "/models/quill-1m").texts(), folder);
  ModelConfig c = parse_config(config.dump(), "config.json");
  c.predictor = true;
  Rng rng(11);
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, const Shape& shape, double mean, double spread) {
    OwnedTensor t = OwnedTensor::allocate(DType::bf16, shape);
    for (bf16& x : t.as<bf16>()) x = to_bf16(static_cast<float>(mean + spread * rng.normal()));
    tensors.push_back(to_write(name, std::move(t)));
  };
  for (const auto& linears : {linears_of(c), kept_linears_of(c)})
    for (LinearId id : linears)
      add(weight_name(id), shape_of(c, id), 0, 1 / std::sqrt(static_cast<double>(shape_of(c, id)[1])));
  for (const auto& norms : {norms_of(c), predictor_norms_of(c)})
    for (const auto& [layer, norm] : norms)
      add(norm_name(c, layer, norm), {norm_size(c, layer, norm)}, norm == Norm::delta ? 1 : 0, 0.2);
  for (const auto& [name, shape] : tensors_of_routers(c)) add(name, shape, 0, 0.1);
  if (experts) add(router_name(c, kPredictorLayer), {c.experts, c.d}, 0, 0.1);
  for (const int layer : delta_layers(c)) {
    add(delta_name(layer, DeltaTensor::convolution), delta_shape(c, DeltaTensor::convolution), 0, 0.5);
    add(delta_name(layer, DeltaTensor::log_rate), delta_shape(c, DeltaTensor::log_rate), 0, 0.5);
    add(delta_name(layer, DeltaTensor::step_bias), delta_shape(c, DeltaTensor::step_bias), -3, 0.5);
  }
  write_sharded_safetensors(folder, tensors, 1'000'000'000, {{"format", "pt"}});
}

}  // namespace fidelio
