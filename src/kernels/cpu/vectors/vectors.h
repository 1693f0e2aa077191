// Linears in vector codes (formats/vector_code.h): rows of linear.h's table.
#pragma once
#include "kernels/cpu/linear/linear.h"

namespace fidelio::cpu {

// Activations of FP32, or in coarser modes of 16 bits. AVX-512's FP32 is AVX2's; AMX finds the rows of AVX-512.
std::span<const LinearKernel> vector_kernels(Isa isa);

}  // namespace fidelio::cpu
