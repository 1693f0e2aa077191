#include "arch/rope.h"

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

}  // namespace

std::vector<float> rope_inverse_frequencies(const Rope& rope, int rotary, int64_t context) {
  std::vector<float> values = rotary_powers(rope.theta, rotary);
  const Ramp ramp = rope.type == RopeType::yarn ? yarn_ramp(rope, rotary) : Ramp{};
  const auto turned = static_cast<size_t>(rope.turned_share * rotary / 2);
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
      case RopeType::proportional:
        values[i] = i < turned ? frequency / static_cast<float>(rope.factor) : 0;
        break;
    }
  }
  return values;
}

}  // namespace fidelio
