// This file makes runners on a GPU. runner_without_cuda.cc stands in for it in builds without CUDA.
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/device/values.h"
#include "runtime/machine/machine.h"
#include "runtime/runner_impl.h"

namespace fidelio {
namespace {

class CudaRunner final : public RunnerImpl<Cuda> {
 public:
  CudaRunner(const Checkpoint& checkpoint, const RunnerOptions& options, const CudaRunner* sibling)
      : RunnerImpl(Cuda({.device = options.gpu}), checkpoint, options, sibling), stream_(cuda::make_stream()) {}
  ~CudaRunner() override { cuda::destroy_stream(stream_); }

  std::unique_ptr<Runner> make_sibling(const Checkpoint& checkpoint, const RunnerOptions& options) const override {
    check(options.gpu == this->options().gpu, "a sibling's weights are on GPU {}, not {}", this->options().gpu,
          options.gpu);
    return std::make_unique<CudaRunner>(checkpoint, options, this);
  }
  std::optional<int> gpu() const override { return options().gpu; }
  std::shared_ptr<float[]> allocate(int64_t values) override {
    const auto memory = std::make_shared<cuda::DeviceBuffer>(static_cast<size_t>(values) * sizeof(float));
    return std::shared_ptr<float[]>(memory, memory->as<float>());
  }
  // The noise is made on the GPU, because a matrix of 59 million values would take the host seconds.
  PackedLinear pack_noisy(const LinearWeight& weight, double sigma, uint64_t stream, bool uniform) override {
    auto noisy = std::make_shared<cuda::Linear>();
    noisy->out = noisy->values.out = weight.out;
    noisy->in = noisy->values.in = weight.in;
    noisy->spec.kind = Kind::f32;
    noisy->spec.bits = 32;
    noisy->codes = cuda::values_of(stream_, weight);
    cuda::add_noise(stream_, noisy->codes.as<float>(), weight.out * weight.in, sigma, stream, uniform);
    noisy->values.single = noisy->codes.as<float>();
    if (weight.bias) {
      noisy->bias = cuda::DeviceBuffer(static_cast<size_t>(weight.bias.view.bytes()));
      cuda::to_device(stream_, noisy->bias.data(), weight.bias.view.data, noisy->bias.size());
      cuda::wait_for(stream_);
    }
    return noisy;
  }

 private:
  cuda::Stream stream_;
};

}  // namespace

std::unique_ptr<Runner> make_cuda_runner(const Checkpoint& checkpoint, const RunnerOptions& options) {
  return std::make_unique<CudaRunner>(checkpoint, options, nullptr);
}

CudaMemory cuda_memory(int gpu) {
  cuda::open_device(gpu);
  return {cuda::device_bytes_free(), cuda::device_bytes_highest()};
}

std::string cuda_name(int gpu) { return cuda::open_device(gpu).name; }

double cuda_copy_bandwidth(int gpu) {
  cuda::open_device(gpu);
  return cuda::copy_bandwidth();
}

}  // namespace fidelio
