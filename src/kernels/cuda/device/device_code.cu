// This file records for which devices the CUDA code of this build was compiled.
#include "kernels/cuda/device/launch.cuh"

namespace fidelio::cuda {
namespace {

// Every compilation of this file has values of its own. All files of this folder are compiled for the same targets.
#if __CUDA_ARCH__ >= 900
constexpr bool kDependents = true;
#else
constexpr bool kDependents = false;
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kHopper = true;
#else
constexpr bool kHopper = false;
#endif
__device__ DeviceCode compiled_for = {kDependents, kHopper};

}  // namespace

const DeviceCode& device_code() {
  static const DeviceCode found = [] {
    DeviceCode code;
    cuda_check(cudaMemcpyFromSymbol(&code, compiled_for, sizeof code), "asking what the code was compiled for");
    return code;
  }();
  return found;
}

}  // namespace fidelio::cuda
