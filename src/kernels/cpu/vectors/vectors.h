// Linears in vector codes (formats/vector_code.h): rows of linear.h's table.
#pragma once
#include "kernels/cpu/linear/linear.h"

namespace fidelio::cpu {

// FP32 activations in every mode. There are rows for portable and AVX2; wider sets find the AVX2 ones.
std::span<const LinearKernel> vector_kernels(Isa isa);

}  // namespace fidelio::cpu
