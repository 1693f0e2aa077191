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
// the FP32 rate on Zen 4 and Zen 5 and at half of it on Intel cores without AMX, and CPUID cannot tell which; so both
// kernels are timed on the same tile, which takes about 2 ms. The two round differently, so a process times them once:
// all its backends choose alike, also where both are about as fast or the machine is busy.
bool bf16_dot_is_faster(Isa isa);

}  // namespace fidelio::cpu
