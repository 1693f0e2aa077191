// This file measures row distances on a GPU.
#include <cmath>

#include "core/error.h"
#include "eval/cuda/distances.h"
#include "eval/fidelity/row_distances.h"
#include "kernels/cuda/device/device.h"

namespace fidelio {
namespace {

class CudaRowDistances final : public RowDistances {
 public:
  explicit CudaRowDistances(int gpu) {
    cuda::open_device(gpu);
    stream_ = cuda::make_stream();
  }
  ~CudaRowDistances() override { cuda::destroy_stream(stream_); }
  void measure(const float* p, const float* q, int64_t v, std::span<RowDistance> found) override {
    static_assert(sizeof(RowDistance) == 2 * sizeof(double));
    if (found.empty()) return;
    if (found_.size() < found.size_bytes()) found_ = cuda::DeviceBuffer(found.size_bytes());
    cuda::row_distances(stream_, p, q, static_cast<int64_t>(found.size()), v, found_.as<double>());
    cuda::from_device(stream_, found.data(), found_.data(), found.size_bytes());
    for (const RowDistance& d : found)
      check(std::isfinite(d.kl) && std::isfinite(d.ear), "a logit is not finite: the model computes NaN or infinity");
  }

 private:
  cuda::Stream stream_ = nullptr;
  cuda::DeviceBuffer found_;
};

}  // namespace

std::unique_ptr<RowDistances> make_cuda_row_distances(int gpu) { return std::make_unique<CudaRowDistances>(gpu); }

}  // namespace fidelio
