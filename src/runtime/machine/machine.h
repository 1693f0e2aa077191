// What a speed is measured on, in words.
#pragma once
#include <optional>
#include <string>

namespace fidelio {

// The GPU's name as its driver says it, or the processor's ("processor" where the system does not say).
std::string machine_name(std::optional<int> gpu);
std::string cuda_name(int gpu);  // throws Error without CUDA

}  // namespace fidelio
