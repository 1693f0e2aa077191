#include "arch/model_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fidelio {
namespace {

// Every `float` below is a rounding that torch makes too; every `double` is a Python number there.

// theta^(2i/e), the wavelength of pair i over 2 pi.
std::vector<float> rotary_powers(const ModelConfig& c) {
  std::vector<float> powers(static_cast<size_t>(c.e / 2));
  for (size_t i = 0; i < powers.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(c.e);
    powers[i] = static_cast<float>(std::pow(c.rope.theta, static_cast<double>(exponent)));
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

// yarn's ramp: pair i is kept below `low`, divided by factor above `high`.
struct Ramp {
  double low, high;
};

Ramp yarn_ramp(const ModelConfig& c) {
  const Rope& rope = c.rope;
  // The pair (a real number) that turns `turns` times over the original context; Peng et al. section 3.2.
  const auto pair_turning = [&](double turns) {
    return c.e * std::log(rope.original_max_positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = pair_turning(rope.beta_fast), high = pair_turning(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, c.e - 1.0);
  if (low == high) high += 0.001;  // transformers' guard against division by zero
  return {low, high};
}

float yarn_scaled(const Rope& rope, const Ramp& ramp, size_t pair, float power) {
  const float position =
      (static_cast<float>(pair) - static_cast<float>(ramp.low)) / static_cast<float>(ramp.high - ramp.low);
  const float keep = 1.0f - std::clamp(position, 0.0f, 1.0f);
  const float extrapolated = 1.0f / power, interpolated = 1.0f / (static_cast<float>(rope.factor) * power);
  return interpolated * (1.0f - keep) + extrapolated * keep;
}

}  // namespace

std::string_view name_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama:
      return "LlamaForCausalLM";
    case Architecture::mistral:
      return "MistralForCausalLM";
    case Architecture::qwen2:
      return "Qwen2ForCausalLM";
    case Architecture::qwen3:
      return "Qwen3ForCausalLM";
  }
  return "?";
}

std::vector<float> rope_inverse_frequencies(const ModelConfig& config) {
  const Rope& rope = config.rope;
  std::vector<float> values = rotary_powers(config);
  const Ramp ramp = rope.type == RopeType::yarn ? yarn_ramp(config) : Ramp{};
  for (size_t i = 0; i < values.size(); ++i) {
    const float frequency = 1.0f / values[i];
    switch (rope.type) {
      case RopeType::plain:
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
    }
  }
  return values;
}

}  // namespace fidelio
