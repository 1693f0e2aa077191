// The launchers behind values.h: pointers into device memory.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

void widen(Stream stream, const uint16_t* from, bool bf16, int64_t n, float* to);
constexpr int kEnergyParts = 1024;
void energy_parts(Stream stream, const float* values, int64_t n, double* parts);  // (kEnergyParts), of sum values^2
void noise(Stream stream, float* values, int64_t n, double scale, uint64_t seed, bool uniform);

}  // namespace fidelio::cuda
