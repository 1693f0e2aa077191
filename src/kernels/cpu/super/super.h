// This file declares the rows of linear.h's table that multiply ggml's super-blocks (Kind::super_block).
#pragma once
#include "kernels/cpu/linear/linear.h"

namespace fidelio::cpu {

// Returns the rows of an instruction set. FP32 rows of AVX-512 and AMX are those of AVX2.
std::span<const LinearKernel> super_kernels(Isa isa);

}  // namespace fidelio::cpu
