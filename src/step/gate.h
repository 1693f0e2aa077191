// This file names the functions that the values of a gate pass before they multiply other values.
#pragma once
#include <cstdint>

namespace fidelio {

// silu is x / (1 + e^-x). gelu_tanh is GELU by tanh: x (1 + tanh(sqrt(2 / pi) (x + .044715 x^3))) / 2.
// sigmoid is 1 / (1 + e^-x).
enum class Gate : uint8_t { silu, gelu_tanh, sigmoid };

}  // namespace fidelio
