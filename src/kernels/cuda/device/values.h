// The values of canonical weights on the device, in FP32: what quantisers and noise work on.
#pragma once
#include "formats/linear_weight.h"
#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

// (out, in). Dense weights travel as they are stored; others are decoded on the host.
DeviceBuffer values_of(Stream stream, const LinearWeight& weight);
// `values` (n) plus sigma times their root mean square, times noise of variance 1 (runtime/noise.h): the host's numbers,
// but that its sums and logarithms round differently in their last bits.
void add_noise(Stream stream, float* values, int64_t n, double sigma, uint64_t seed, bool uniform);

}  // namespace fidelio::cuda
