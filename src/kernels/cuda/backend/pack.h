// From a canonical weight to a packed one (cuda.h).
#pragma once
#include "kernels/cuda/backend/cuda.h"

namespace fidelio::cuda {

Linear pack(Stream stream, const LinearWeight& weight);

}  // namespace fidelio::cuda
