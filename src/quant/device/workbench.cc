#include "quant/device/workbench.h"

#include <optional>

#include "quant/feedback.h"

namespace fidelio {
namespace {

// Runs decode() in all threads.
std::vector<float> decode(const LinearWeight& weight, ThreadPool& pool) {
  std::vector<float> values(static_cast<size_t>(weight.out * weight.in));
  const auto in = static_cast<size_t>(weight.in);
  pool.run_ranges(weight.out, [&](int64_t first, int64_t last, int) {
    for (int64_t row = first; row < last; ++row)
      decode_row(weight, row, std::span(values).subspan(static_cast<size_t>(row) * in, in));
  });
  return values;
}

class HostWorkbench final : public Workbench {
 public:
  explicit HostWorkbench(ThreadPool& pool) : pool_(pool) {}
  void begin(int64_t in) override {
    factor_.reset();
    feedback_.reset();
    hessian_.emplace(in);
  }
  void begin(const Hessian& hessian) override {
    begin(hessian.in());
    hessian_ = hessian.copy();
  }
  void add(std::span<const float> x) override { hessian_->add(x, pool_); }
  void add(std::span<const float> x, std::span<const float> source) override {
    add(x);
    if (!feedback_) feedback_.emplace(hessian_->in());
    feedback_->add(source, x, pool_);
  }
  void factorize(double damping, bool act_order) override {
    factor_ = fidelio::factorize(*hessian_, damping, act_order, pool_);
  }
  void load(const LinearWeight& original) override {
    out_ = original.out;
    in_ = original.in;
    values_ = decode(original, pool_);
    if (feedback_) values_ = feedback_->target(values_, out_, *hessian_, *factor_, pool_);
  }
  GptqResult quantize(const FormatSpec& spec, const GptqOptions& options) override {
    return quantize_gptq(spec, values_, out_, in_, *hessian_, *factor_, options, pool_);
  }
  Hessian hessian() override { return hessian_->copy(); }
  std::vector<float> values() override { return values_; }

 private:
  ThreadPool& pool_;
  std::optional<Hessian> hessian_;
  std::optional<HessianFactor> factor_;
  std::optional<Feedback> feedback_;
  int64_t out_ = 0, in_ = 0;
  std::vector<float> values_;
};

}  // namespace

std::unique_ptr<Workbench> make_workbench(const Runner& runner, ThreadPool& pool) {
  return runner.gpu() ? make_cuda_workbench(*runner.gpu(), pool) : make_host_workbench(pool);
}

std::unique_ptr<Workbench> make_host_workbench(ThreadPool& pool) { return std::make_unique<HostWorkbench>(pool); }

}  // namespace fidelio
