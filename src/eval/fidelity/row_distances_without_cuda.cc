// This file replaces row_distances_cuda.cc in builds without CUDA.
#include "core/error.h"
#include "eval/fidelity/row_distances.h"

namespace fidelio {

namespace {

constexpr const char* kNoBackend =
    "this build has no CUDA backend: build with `cmake --preset cuda`, or use --device cpu";

}  // namespace

std::unique_ptr<RowDistances> make_cuda_row_distances(int) { throw Error(kNoBackend); }
std::unique_ptr<CudaComparer> make_cuda_comparer(int, int) { throw Error(kNoBackend); }

}  // namespace fidelio
