// cuda_check turns a CUDA status into the project's Error, with what was being done. The message is made in
// cuda_error.cc, because nvcc cannot compile fmt's compile-time format strings.
#pragma once
#include <cuda_runtime_api.h>

namespace fidelio::cuda {

[[noreturn]] void throw_cuda_error(cudaError_t status, const char* doing);

inline void cuda_check(cudaError_t status, const char* doing) {
  if (status != cudaSuccess) throw_cuda_error(status, doing);
}

}  // namespace fidelio::cuda
