// launch() starts a kernel with programmatic dependent launch, so that its thread blocks may start while the kernel
// before still runs. Every kernel that is launched so begins with ptx::allow_dependents(). It calls
// ptx::dependency_wait() before it touches what other kernels wrote or read.
#pragma once
#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/device/cuda_error.cuh"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/linear/layout/lowbit.h"

namespace fidelio::cuda {

inline int multiprocessors() {
  static const int count = [] {
    int device = 0, value = 0;
    cuda_check(cudaGetDevice(&device), "asking for the device");
    cuda_check(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device), "counting multiprocessors");
    return value;
  }();
  return count;
}

inline bool is_hopper() { return device_code().hopper; }

struct LaunchShape {
  dim3 grid;
  int threads;
  size_t shared;
  unsigned cluster = 1;  // how many thread blocks along z form a cluster (Hopper)
  bool early = true;     // thread blocks may start while the kernel before still runs
};
template <typename... Parameters, typename... Arguments>
void launch(const char* doing, Stream stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (shape.early && device_code().dependents) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {1, 1, shape.cluster};
  }
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), doing);
}
template <typename... Parameters, typename... Arguments>
void launch(const char* doing, Stream stream, dim3 grid, int threads, size_t shared, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  launch(doing, stream, LaunchShape{grid, threads, shared}, kernel, std::forward<Arguments>(arguments)...);
}

// Returns how many clusters of such a shape can run on the device at once.
template <typename... Parameters>
int clusters_at_once(int threads, size_t shared, int cluster, void (*kernel)(Parameters...)) {
  cudaLaunchAttribute size = {};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {1, 1, static_cast<unsigned>(cluster)};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1, 1, static_cast<unsigned>(cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.attrs = &size;
  config.numAttrs = 1;
  int count = 0;
  cuda_check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "counting clusters");
  return count;
}

__device__ __forceinline__ void begin_kernel() {
  ptx::allow_dependents();
  ptx::dependency_wait();
}

}  // namespace fidelio::cuda
