// Linears in vector codes (formats/vector_code.h): rows of linear.h's table.
#pragma once
#include "kernels/cpu/linear/linear.h"

namespace fidelio::cpu {

// Activations of FP32, or in coarser modes of 16 bits. There are rows for portable and AVX2; wider sets find the AVX2
// ones.
std::span<const LinearKernel> vector_kernels(Isa isa);

}  // namespace fidelio::cpu
