// This file names the functions of a gate and of the values that it multiplies.
#pragma once
#include <cstdint>

namespace fidelio {

// silu is x / (1 + e^-x). gelu_tanh is GELU by tanh: x (1 + tanh(sqrt(2 / pi) (x + .044715 x^3))) / 2.
// sigmoid is 1 / (1 + e^-x). These three multiply `up` as it is. clamped is gpt-oss's: with x = min(gate, limit) and
// u = up held within -limit and limit, it is x / (1 + e^(-alpha x)) (u + 1).
enum class Gate : uint8_t { silu, gelu_tanh, sigmoid, clamped };

// A Gating is a function of gates, with the numbers that `clamped` has.
struct Gating {
  Gate function;
  float alpha, limit;
  constexpr Gating(Gate of, float with_alpha = 1, float with_limit = 0)
      : function(of), alpha(with_alpha), limit(with_limit) {}
  bool operator==(const Gating&) const = default;
};

}  // namespace fidelio
