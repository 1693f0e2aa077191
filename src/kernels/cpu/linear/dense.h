// This file is the part of the CPU backend that multiplies by dense weights: it names the kernels of each instruction
// set and chooses between the two products of BF16 weights.
#pragma once
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/linear/linear.h"

namespace fidelio::cpu {

// Returns the dense kernels of an instruction set. Throws Error if they are not in this build.
const KernelSet& kernel_set(Isa isa);
// Returns the bytes of one packed block of 16 outputs of a dense weight with `in` columns.
int64_t dense_block_stride(Kind kind, int64_t in);

// Returns true if the dot product of BF16 pairs is faster than widening the weights for FP32 FMA. It runs at twice
// the FP32 rate on AMD's Zen 4 and Zen 5. On Intel's cores it takes 1.3 to 1.5 times as long from four rows on, and
// .95 to 1 of the time for one row, where both wait for memory (Sapphire Rapids). The two round differently, so the
// maker of the CPU decides and no clock: every process on a machine computes the same.
bool bf16_dot_is_faster(Isa isa);

}  // namespace fidelio::cpu
