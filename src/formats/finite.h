// Weights that hold NaN or infinity are found when they are opened for use, not when a token first meets them: a row of
// an embedding may wait long for that.
#pragma once
#include <cstdint>
#include <string>

#include "formats/linear_weight.h"

namespace fidelio {

// The index of the first value of F32, F16, BF16 or F8_E4M3 that is NaN or infinite; -1 where there is none, and for
// integers. Reads at memory's speed: it looks at exponents, block by block.
int64_t first_not_finite(const Tensor& tensor);

// Throws Error naming the weight, the tensor and the place of a value (weight or scale) that is not finite.
void check_finite(const LinearWeight& weight, const std::string& name);

}  // namespace fidelio
