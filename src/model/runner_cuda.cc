#include "kernels/cuda/cuda.h"
#include "model/runner_impl.h"

namespace fidelio {

std::unique_ptr<Runner> make_cuda_runner(const Checkpoint& checkpoint, const RunnerOptions& options) {
  check(!is_coarse(options.mode), "the CUDA backend has no activations of 8 bits or fewer yet: use a16 or f32");
  return std::make_unique<RunnerImpl<Cuda>>(Cuda({.device = options.gpu}), checkpoint, options);
}

double cuda_copy_bandwidth(int gpu) {
  cuda::open_device(gpu);
  return cuda::copy_bandwidth();
}

}  // namespace fidelio
