#include "arch/model_config.h"

namespace fidelio {
namespace {

constexpr Blocks kQwen3{.qk_norm = QkNorm::head};
constexpr Blocks kOlmo{.norm_before = false, .norm_after = true, .qk_norm = QkNorm::width};
constexpr Blocks kGemma3{
    .norm_after = true, .norm_plus_one = true, .qk_norm = QkNorm::head, .activation = Activation::gelu_tanh};
constexpr Blocks kGemma4{.norm_after = true,
                         .qk_norm = QkNorm::head,
                         .activation = Activation::gelu_tanh,
                         .shared_gate = false,
                         .value_norm = true,
                         .layer_scalar = true,
                         .experts = ExpertFiles::beside};
constexpr Blocks kQwen35{.norm_plus_one = true, .qk_norm = QkNorm::head, .attention_gate = true};
constexpr Family kFamilies[] = {
    {Architecture::llama, "LlamaForCausalLM", "llama", {}},
    {Architecture::mistral, "MistralForCausalLM", "mistral", {}},
    {Architecture::qwen2, "Qwen2ForCausalLM", "qwen2", {}},
    {Architecture::qwen3, "Qwen3ForCausalLM", "qwen3", kQwen3},
    {Architecture::smollm3, "SmolLM3ForCausalLM", "smollm3", {}},
    {Architecture::ministral, "MinistralForCausalLM", "ministral", {}},
    {Architecture::ministral3, "Ministral3ForCausalLM", "ministral3", {}},
    {Architecture::phi3, "Phi3ForCausalLM", "phi3", {.fused = true}},
    {Architecture::granite, "GraniteForCausalLM", "granite", {}},
    {Architecture::olmo2, "Olmo2ForCausalLM", "olmo2", kOlmo},
    {Architecture::olmo3, "Olmo3ForCausalLM", "olmo3", kOlmo},
    {Architecture::gemma3, "Gemma3ForCausalLM", "gemma3_text", kGemma3},
    {Architecture::gemma4, "Gemma4ForCausalLM", "gemma4_text", kGemma4},
    {Architecture::mixtral, "MixtralForCausalLM", "mixtral", {.experts = ExpertFiles::lettered}},
    {Architecture::olmoe, "OlmoeForCausalLM", "olmoe", {.qk_norm = QkNorm::width, .experts = ExpertFiles::each}},
    {Architecture::qwen3_moe,
     "Qwen3MoeForCausalLM",
     "qwen3_moe",
     {.qk_norm = QkNorm::head, .experts = ExpertFiles::each}},
    {Architecture::granite_moe, "GraniteMoeForCausalLM", "granitemoe", {.experts = ExpertFiles::stacked}},
    {Architecture::qwen3_next,
     "Qwen3NextForCausalLM",
     "qwen3_next",
     {.norm_plus_one = true,
      .qk_norm = QkNorm::head,
      .delta_fused = true,
      .attention_gate = true,
      .experts = ExpertFiles::joined}},
    {Architecture::qwen3_5, "Qwen3_5ForCausalLM", "qwen3_5_text", kQwen35},
    {Architecture::qwen3_5_moe,
     "Qwen3_5MoeForCausalLM",
     "qwen3_5_moe_text",
     {.norm_plus_one = true, .qk_norm = QkNorm::head, .attention_gate = true, .experts = ExpertFiles::joined}},
    {Architecture::qwen2_moe, "Qwen2MoeForCausalLM", "qwen2_moe", {.experts = ExpertFiles::each}},
    {Architecture::glm4_moe, "Glm4MoeForCausalLM", "glm4_moe", {.shared_gate = false, .experts = ExpertFiles::each}},
    {Architecture::minimax_m2,
     "MiniMaxM2ForCausalLM",
     "minimax_m2",
     {.qk_norm = QkNorm::width, .experts = ExpertFiles::lettered}},
    {Architecture::gpt_oss,
     "GptOssForCausalLM",
     "gpt_oss",
     {.activation = Activation::clamped, .sinks = true, .experts = ExpertFiles::alternating}},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }
const Family& family_of(Architecture architecture) { return kFamilies[static_cast<size_t>(architecture)]; }

LayerKind kind_of(const ModelConfig& config, int layer) {
  if (config.kinds.empty()) return {config.sliding_window, RopeUse::global};
  if (layer == kPredictorLayer) return {};
  return config.kinds.at(static_cast<size_t>(layer));
}

}  // namespace fidelio
