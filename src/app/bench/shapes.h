// This file lists the shapes of public models by name, for work on speed without their weights. `synth` writes such
// models, and `bench linear` times their matrices.
#pragma once
#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fidelio::app {

struct NamedShape {
  const char* name;
  const char* architecture;
  const char* model_type;
  int L, d, h, hk, e, f, v, context;
  bool tied;
  double theta, eps;
  int experts = 0, experts_per_row = 0;
  int shared_f = 0;  // the ffn dim of the expert that every row passes
  // These are the heads of gated delta nets, of 128 columns each. All layers but every fourth have one.
  int delta_keys = 0, delta_values = 0;
};
inline constexpr int kDeltaHeadColumns = 128;
// The numbers are from the public config.json of each model.
inline constexpr std::array<NamedShape, 13> kShapes = {{
    {"tinyllama-1.1b", "LlamaForCausalLM", "llama", 22, 2048, 32, 4, 64, 5632, 32000, 2048, false, 1e4, 1e-5},
    {"qwen3-0.6b", "Qwen3ForCausalLM", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, true, 1e6, 1e-6},
    {"qwen3-8b", "Qwen3ForCausalLM", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960, false, 1e6, 1e-6},
    {"llama-2-7b", "LlamaForCausalLM", "llama", 32, 4096, 32, 32, 128, 11008, 32000, 4096, false, 1e4, 1e-5},
    {"llama-3-8b", "LlamaForCausalLM", "llama", 32, 4096, 32, 8, 128, 14336, 128256, 8192, false, 5e5, 1e-5},
    {"olmoe-1b-7b", "OlmoeForCausalLM", "olmoe", 16, 2048, 16, 16, 128, 1024, 50304, 4096, false, 1e4, 1e-5, 64, 8},
    {"qwen3-30b-a3b", "Qwen3MoeForCausalLM", "qwen3_moe", 48, 2048, 32, 4, 128, 768, 151936, 40960, false, 1e6, 1e-6,
     128, 8},
    {"qwen3.5-0.8b", "Qwen3_5ForCausalLM", "qwen3_5_text", 24, 1024, 8, 2, 256, 3584, 248320, 262144, true, 1e7, 1e-6,
     0, 0, 0, 16, 16},
    {"qwen3.5-2b", "Qwen3_5ForCausalLM", "qwen3_5_text", 24, 2048, 8, 2, 256, 6144, 248320, 262144, true, 1e7, 1e-6, 0,
     0, 0, 16, 16},
    {"qwen3.5-9b", "Qwen3_5ForCausalLM", "qwen3_5_text", 32, 4096, 16, 4, 256, 12288, 248320, 262144, false, 1e7, 1e-6,
     0, 0, 0, 16, 32},
    {"qwen3.8-27b", "Qwen3_5ForCausalLM", "qwen3_5_text", 64, 5120, 24, 4, 256, 17408, 248320, 262144, false, 1e7, 1e-6,
     0, 0, 0, 16, 48},
    {"qwen3.6-35b-a3b", "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 40, 2048, 16, 2, 256, 512, 248320, 262144, false,
     1e7, 1e-6, 256, 8, 512, 16, 32},
    {"gpt-oss-20b", "GptOssForCausalLM", "gpt_oss", 24, 2880, 64, 8, 64, 2880, 201088, 131072, false, 1.5e5, 1e-5, 32,
     4},
}};

// Returns the config.json of a model of this shape.
nlohmann::json hf_config_of(const NamedShape& shape);

inline const NamedShape* find_shape(std::string_view name) {
  for (const NamedShape& shape : kShapes)
    if (name == shape.name) return &shape;
  return nullptr;
}

inline std::string shape_names() {
  std::string names;
  for (const NamedShape& shape : kShapes) names += (names.empty() ? "" : ", ") + std::string(shape.name);
  return names;
}

}  // namespace fidelio::app
