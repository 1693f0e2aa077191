// This file declares the functions that launch the kernels behind values.h. Pointers are into device memory.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

void widen(Stream stream, const uint16_t* from, bool bf16, int64_t n, float* to);
constexpr int kEnergyParts = 1024;
// Parts (kEnergyParts) of sum values^2.
void energy_parts(Stream stream, const float* values, int64_t n, double* parts);
void noise(Stream stream, float* values, int64_t n, double scale, uint64_t seed, bool uniform);

}  // namespace fidelio::cuda
