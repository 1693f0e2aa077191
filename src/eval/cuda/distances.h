// KL and EAR of rows of logits on the device (eval/fidelity/fidelity.h says what they are).
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

// found (rows, 2) = {KL in nats, EAR} of the distributions of p's and q's rows (rows, v). FP64 throughout, in an order
// that depends on v alone. A logit that is not finite makes a result that is not.
void row_distances(Stream stream, const float* p, const float* q, int64_t rows, int64_t v, double* found);

}  // namespace fidelio::cuda
