#include "arch/model_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fidelio {
namespace {

// Every `float` below is a rounding that torch makes too. Every `double` is a Python number in transformers.

// Returns theta^(2i/rotary) for each pair i. This is the pair's wavelength divided by 2 pi.
std::vector<float> rotary_powers(double theta, int rotary) {
  std::vector<float> powers(static_cast<size_t>(rotary / 2));
  for (size_t i = 0; i < powers.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary);
    powers[i] = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  return powers;
}

float llama3_scaled(const Rope& rope, float frequency) {
  const double context = rope.original_max_positions;
  const float wavelength = static_cast<float>(2 * std::numbers::pi) * (1.0f / frequency);
  const float divided = frequency / static_cast<float>(rope.factor);
  if (wavelength > static_cast<float>(context / rope.low_freq_factor)) return divided;
  if (wavelength < static_cast<float>(context / rope.high_freq_factor)) return frequency;
  const float turns = (1.0f / wavelength) * static_cast<float>(context);
  const float keep = (turns - static_cast<float>(rope.low_freq_factor)) /
                     static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1.0f - keep) * frequency / static_cast<float>(rope.factor) + keep * frequency;
}

// A Ramp is the transition of yarn's frequencies. Pair i is kept below `low` and divided by the factor above `high`.
struct Ramp {
  double low, high;
};

Ramp yarn_ramp(const Rope& rope, int rotary) {
  // Returns the pair, as a real number, that makes `turns` turns over the original context (Peng et al., section
  // 3.2).
  const auto pair_turning = [&](double turns) {
    return rotary * std::log(rope.original_max_positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = pair_turning(rope.beta_fast), high = pair_turning(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rotary - 1.0);
  if (low == high) high += 0.001;  // transformers has this guard against a division by zero
  return {low, high};
}

float yarn_scaled(const Rope& rope, const Ramp& ramp, size_t pair, float power) {
  const float position =
      (static_cast<float>(pair) - static_cast<float>(ramp.low)) / static_cast<float>(ramp.high - ramp.low);
  const float keep = 1.0f - std::clamp(position, 0.0f, 1.0f);
  const float extrapolated = 1.0f / power, interpolated = 1.0f / (static_cast<float>(rope.factor) * power);
  return interpolated * (1.0f - keep) + extrapolated * keep;
}

constexpr Blocks kQwen3{.qk_norm = QkNorm::head};
constexpr Blocks kOlmo{.norm_before = false, .norm_after = true, .qk_norm = QkNorm::width};
constexpr Blocks kGemma3{
    .norm_after = true, .norm_plus_one = true, .qk_norm = QkNorm::head, .activation = Activation::gelu_tanh};
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

std::vector<float> rope_inverse_frequencies(const Rope& rope, int rotary, int64_t context) {
  std::vector<float> values = rotary_powers(rope.theta, rotary);
  const Ramp ramp = rope.type == RopeType::yarn ? yarn_ramp(rope, rotary) : Ramp{};
  const std::vector<double>& divisors =
      context > rope.original_max_positions ? rope.long_divisors : rope.short_divisors;
  for (size_t i = 0; i < values.size(); ++i) {
    const float frequency = 1.0f / values[i];
    switch (rope.type) {
      case RopeType::plain:
      case RopeType::dynamic:
        values[i] = frequency;
        break;
      case RopeType::linear:
        values[i] = frequency / static_cast<float>(rope.factor);
        break;
      case RopeType::llama3:
        values[i] = llama3_scaled(rope, frequency);
        break;
      case RopeType::yarn:
        values[i] = yarn_scaled(rope, ramp, i, values[i]);
        break;
      case RopeType::longrope:
        values[i] = 1.0f / (static_cast<float>(divisors.at(i)) * values[i]);
        break;
    }
  }
  return values;
}

}  // namespace fidelio
