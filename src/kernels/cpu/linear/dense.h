// Dense weights inside the CPU backend: which KernelSet an instruction set has.
#pragma once
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/linear/linear.h"

namespace fidelio::cpu {

const KernelSet& kernel_set(Isa isa);
int64_t dense_block_stride(Kind kind, int64_t in);  // bytes of one packed block of 16 outputs

// True where the dot product of BF16 pairs beats widening the weights for FP32 FMA: it runs at twice the FP32 rate on
// Zen 5 and Zen 4 and at half of it on Intel cores without AMX, which CPUID cannot tell. Takes about 2 ms: both
// kernels, the same tile.
bool bf16_dot_is_faster(Isa isa);

}  // namespace fidelio::cpu
