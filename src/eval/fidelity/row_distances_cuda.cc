// This file compares rows of logits on a GPU.
#include <algorithm>
#include <cmath>
#include <vector>

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

class Comparer final : public CudaComparer {
 public:
  Comparer(int gpu, int top_k) : top_k_(top_k) {
    cuda::open_device(gpu);
    stream_ = cuda::make_stream();
  }
  ~Comparer() override { cuda::destroy_stream(stream_); }
  void compare(const float* p, const float* q, int64_t v, std::span<const int32_t> tokens,
               std::span<PositionFidelity> found, std::span<TokenLogits> logits) override {
    const size_t rows = found.size(), count = static_cast<size_t>(std::min<int64_t>(top_k_, v));
    if (rows == 0) return;
    const auto with_room = [&](cuda::DeviceBuffer& buffer, size_t bytes) {
      cuda::reserve(stream_, buffer, static_cast<int64_t>(bytes));
    };
    figures_.resize(rows);
    top_.resize(rows * count);
    with_room(tokens_on_, tokens.size_bytes());
    with_room(figures_on_, rows * sizeof(cuda::RowFigures));
    with_room(top_on_, top_.size() * sizeof(cuda::TopLogits));
    cuda::to_device(stream_, tokens_on_.data(), tokens.data(), tokens.size_bytes());
    cuda::row_figures(stream_, p, q, tokens_on_.as<int32_t>(), static_cast<int64_t>(rows), v, static_cast<int>(count),
                      figures_on_.as<cuda::RowFigures>(), top_on_.as<cuda::TopLogits>());
    cuda::from_device(stream_, figures_.data(), figures_on_.data(), rows * sizeof(cuda::RowFigures));
    cuda::from_device(stream_, top_.data(), top_on_.data(), top_.size() * sizeof(cuda::TopLogits));
    for (size_t i = 0; i < rows; ++i) {
      found[i] = position_of(figures_[i], std::span(top_).subspan(i * count, count));
      logits[i] = {figures_[i].p_at_token, figures_[i].q_at_token};
    }
  }

 private:
  PositionFidelity position_of(const cuda::RowFigures& row, std::span<const cuda::TopLogits> top) {
    check(std::isfinite(row.kl) && std::isfinite(row.distance) && std::isfinite(row.entropy),
          "a logit is not finite: the model computes NaN or infinity; its weights are damaged or a format's scale "
          "overflowed");
    PositionFidelity f;
    f.kl = row.kl;
    f.ear = 1 - row.distance / 2;
    f.entropy = row.entropy;
    f.confidence = 1 / row.sum_p;  // the largest logit is the one that sums are relative to
    f.log_sum_exp_p = row.most_p + std::log(row.sum_p);
    f.log_sum_exp_q = row.most_q + std::log(row.sum_q);
    f.top_p = row.top_p;
    f.top_q = row.top_q;
    if (!f.agree()) {
      f.margin_p = 1 / row.sum_p - std::exp(row.p_at_top_q - f.log_sum_exp_p);
      f.margin_q = 1 / row.sum_q - std::exp(row.q_at_top_p - f.log_sum_exp_q);
    }
    p_top_.clear();
    q_top_.clear();
    for (const cuda::TopLogits& t : top) p_top_.push_back(t.p), q_top_.push_back(t.q);
    compare_top(p_top_, q_top_, f);
    return f;
  }

  const int top_k_;
  cuda::Stream stream_ = nullptr;
  cuda::DeviceBuffer tokens_on_, figures_on_, top_on_;
  std::vector<cuda::RowFigures> figures_;
  std::vector<cuda::TopLogits> top_;
  std::vector<float> p_top_, q_top_;
};

}  // namespace

std::unique_ptr<CudaComparer> make_cuda_comparer(int gpu, int top_k) { return std::make_unique<Comparer>(gpu, top_k); }
std::unique_ptr<RowDistances> make_cuda_row_distances(int gpu) { return std::make_unique<CudaRowDistances>(gpu); }

}  // namespace fidelio
