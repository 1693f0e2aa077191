// This file packs a canonical weight for the GPU.
#pragma once
#include "kernels/cuda/backend/cuda.h"

namespace fidelio::cuda {

// Dense weights of at most so many outputs, as delta nets and shared experts have, are multiplied in FP32 by the kernel
// of routers where cuBLASLt has no product for them. It needs no scratch, which could not grow in a recorded step.
constexpr int64_t kNarrowOutputs = 256;

// Copies a weight to the device in the layout of its kernels. Throws Error if the format's limits on this GPU are
// exceeded.
Linear pack(Stream stream, const LinearWeight& weight);

}  // namespace fidelio::cuda
