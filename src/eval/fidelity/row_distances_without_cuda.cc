// This file replaces row_distances_cuda.cc in builds without CUDA.
#include "core/error.h"
#include "eval/fidelity/row_distances.h"

namespace fidelio {

std::unique_ptr<RowDistances> make_cuda_row_distances(int) {
  throw Error("this build has no CUDA backend: build with `cmake --preset cuda`, or use --device cpu");
}

}  // namespace fidelio
