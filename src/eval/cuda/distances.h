// This file computes KL and EAR of rows of logits on the GPU (eval/fidelity/fidelity.h defines them).
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

// Writes found (rows, 2) = {KL in nats, EAR} of the distributions of the rows of p and q, both (rows, v). All
// arithmetic is FP64, in an order that depends on v alone. If a logit is not finite, neither is the result.
void row_distances(Stream stream, const float* p, const float* q, int64_t rows, int64_t v, double* found);

}  // namespace fidelio::cuda
