// This file finds weights that hold NaN or infinity. They are searched when a model is opened for use, because a row of
// an embedding may wait long until a token first reads it.
#pragma once
#include <cstdint>
#include <string>

#include "formats/linear_weight.h"

namespace fidelio {

// Returns the index of the first value that is NaN or infinite in a tensor of F32, F16, BF16 or F8_E4M3. Returns -1
// where there is none, and for tensors of integers. It reads at memory speed, as it tests exponents block by block.
int64_t first_not_finite(const Tensor& tensor);

// Throws Error naming the weight, the tensor and the place of a value (weight or scale) that is not finite.
void check_finite(const LinearWeight& weight, const std::string& name);

}  // namespace fidelio
