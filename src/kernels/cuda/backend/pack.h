// This file packs a canonical weight for the GPU.
#pragma once
#include "kernels/cuda/backend/cuda.h"

namespace fidelio::cuda {

// Copies a weight to the device in the layout of its kernels. Throws Error if the format's limits on this GPU are
// exceeded.
Linear pack(Stream stream, const LinearWeight& weight);

}  // namespace fidelio::cuda
