// This file names the machine that a speed is measured on.
#pragma once
#include <optional>
#include <string>

namespace fidelio {

// Returns the GPU's name as its driver reports it, or the processor's name ("processor" if the
// system does not report it).
std::string machine_name(std::optional<int> gpu);
std::string cuda_name(int gpu);  // throws Error without CUDA

}  // namespace fidelio
