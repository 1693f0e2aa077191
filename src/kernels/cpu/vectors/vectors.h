// This file declares the rows of linear.h's table that multiply linears in vector codes (formats/vector_code.h).
#pragma once
#include "kernels/cpu/linear/linear.h"

namespace fidelio::cpu {

// Returns the rows of an instruction set. Activations are FP32, or have 16 bits in the coarser modes. FP32 rows of
// AVX-512 are those of AVX2; AMX uses the rows of AVX-512.
std::span<const LinearKernel> vector_kernels(Isa isa);

}  // namespace fidelio::cpu
