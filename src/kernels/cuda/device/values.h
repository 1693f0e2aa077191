// This file provides the values of canonical weights on the device, in FP32, which quantisers and noise work on.
#pragma once
#include "formats/linear_weight.h"
#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

// Returns the values (out, in). Dense weights are copied as they are stored; others are decoded on the host.
DeviceBuffer values_of(Stream stream, const LinearWeight& weight);
// Adds to `values` (n) noise of variance 1, times sigma times the values' root mean square (runtime/noise.h). The
// numbers are those of the host, except that sums and logarithms round differently in their last bits.
void add_noise(Stream stream, float* values, int64_t n, double sigma, uint64_t seed, bool uniform);

}  // namespace fidelio::cuda
