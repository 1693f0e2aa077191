// This file turns CUDA's errors into Errors that name a remedy.
#include "kernels/cuda/device/cuda_error.cuh"

#include "core/error.h"

namespace fidelio::cuda {

void throw_cuda_error(cudaError_t status, const char* doing) {
  const char* remedy = "";
  if (status == cudaErrorMemoryAllocation)
    remedy = "; the device's memory is full: use fewer bits, a shorter context, fewer rows, or --device cpu";
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver)
    remedy = "; use --device cpu, or install a driver that knows this CUDA version";
  if (status == cudaErrorNoKernelImageForDevice)
    remedy = "; this build has no code for this GPU: name its compute capability in CUDA_TARGETS, or use --device cpu";
  throw Error("CUDA, {}: {} ({}){}", doing, cudaGetErrorString(status), cudaGetErrorName(status), remedy);
}

}  // namespace fidelio::cuda
