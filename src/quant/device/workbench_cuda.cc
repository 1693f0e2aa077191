// This file implements a Workbench on a GPU.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "kernels/cuda/device/values.h"
#include "quant/codebook.h"
#include "quant/cuda/feedback.h"
#include "quant/cuda/gptq.h"
#include "quant/descent/curvature.h"
#include "quant/device/vectors_cuda.h"
#include "quant/device/workbench.h"
#include "quant/feedback.h"
#include "quant/strip.h"

namespace fidelio {
namespace {

// An OpenStream is a stream that outlives the objects made on it.
struct OpenStream {
  explicit OpenStream(int gpu) {
    cuda::open_device(gpu);
    stream = cuda::make_stream();
  }
  ~OpenStream() { cuda::destroy_stream(stream); }
  OpenStream(const OpenStream&) = delete;
  OpenStream& operator=(const OpenStream&) = delete;
  cuda::Stream stream = nullptr;
};

class CudaWorkbench final : public Workbench {
 public:
  CudaWorkbench(int gpu, ThreadPool& pool)
      : stream_(gpu),
        order_(stream_.stream),
        feedback_(stream_.stream),
        gptq_(stream_.stream),
        vectors_(stream_.stream),
        pool_(pool) {}

  void begin(int64_t in) override {
    host_.reset();
    vectors_.forget();
    order_.begin(in);
    feedback_.begin(in);
  }
  void begin(const Hessian& hessian) override {
    begin(hessian.in());
    order_.begin(hessian.matrix(), hessian.in(), hessian.tokens());
  }
  void add(std::span<const float> x) override { order_.add(x); }
  void add(std::span<const float> x, std::span<const float> source) override {
    order_.add(x);
    feedback_.add(source, x);
  }
  void factorize(double damping, bool act_order) override {
    order_.factorize(damping, act_order);
    vectors_.forget();
  }
  void load(const LinearWeight& original) override {
    check(original.in == order_.in(), "a matrix of {} columns needs a Hessian of {}, not {}", original.in, original.in,
          order_.in());
    original_ = &original;
    decoded_.clear();
    values_ = cuda::values_of(stream_.stream, original);
    const int64_t bad = cuda::first_not_finite(stream_.stream, values_.as<float>(), original.out * original.in);
    check(bad < 0, "the weight at row {}, column {} is not finite; only finite weights can be quantised",
          bad / original.in, bad % original.in);
    if (!feedback_.empty())
      feedback_.target(order_, fidelio::Feedback::trust(feedback_.tokens(), original.in), values_.as<float>(),
                       original.out);
  }

  GptqResult quantize(const FormatSpec& spec, const GptqOptions& options) override {
    if (CudaVectors::takes(spec, options))
      return vectors_.quantize(spec, options, order_, values_.as<float>(), original_->out, pool_);
    const bool view = spec.kind == Kind::integer && is_view_width(spec.bits, options.view_bits);
    const int passes = options.descend_codes || options.refit_scales ? options.descent_passes : 0;
    // Only codes or only scales change in a pass, as studies ask for.
    const bool half = passes > 0 && options.descend_codes != options.refit_scales;
    if (!cuda::Gptq::takes(spec) || (view && options.view_weight > 0) || half) return on_host(spec, options);
    const auto start = std::chrono::steady_clock::now();
    const int64_t out = original_->out, in = original_->in;
    GptqResult result{.weight = allocate_weight(spec, out, in),
                      .report = {.damping = order_.factor().damping, .dead_columns = order_.factor().dead}};
    cuda::GptqPlan plan{spec, {}, options.range_search, passes};
    if (spec.kind == Kind::grid) plan.codebook = codebook(spec, result.weight);
    const cuda::DeviceBuffer values(values_.size());  // quantise() overwrites its values
    cuda::on_device(stream_.stream, values.data(), values_.data(), values_.size());
    const cuda::GptqCodes& codes = gptq_.quantise(plan, order_, values.as<float>(), out);
    result.report.energy = codes.energy;
    result.report.loss_gptq = codes.before;
    result.report.loss = codes.after;
    write(plan, codes, options.output_moment, result);
    result.report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
  }
  Hessian hessian() override {
    const int64_t in = order_.in();
    std::vector<float> matrix(static_cast<size_t>(in * in));
    cuda::from_device(stream_.stream, matrix.data(), order_.matrix(), matrix.size() * sizeof(float));
    return Hessian::from_matrix(matrix, in, order_.tokens());
  }
  std::vector<float> values() override { return decoded(); }

 private:
  std::vector<int8_t> codebook(const FormatSpec& spec, LinearWeight& weight) {
    const std::vector<float>& values = decoded();
    const std::vector<int8_t> book =
        fit_codebook(spec, values, original_->out, original_->in, order_.factor().weight, pool_);
    std::copy(book.begin(), book.end(), std::get<VectorCode>(weight.main).codebook.as<int8_t>().begin());
    return book;
  }

  // Returns the values to quantise, on the host. They are zero in columns that no calibration token uses.
  const std::vector<float>& decoded() {
    if (!decoded_.empty()) return decoded_;
    decoded_.resize(static_cast<size_t>(original_->out * original_->in));
    cuda::from_device(stream_.stream, decoded_.data(), values_.data(), decoded_.size() * sizeof(float));
    const std::vector<float>& weight = order_.factor().weight;
    if (order_.factor().dead == 0) return decoded_;
    for (int64_t r = 0; r < original_->out; ++r)
      for (int64_t c = 0; c < original_->in; ++c)
        if (weight[static_cast<size_t>(c)] == 0) decoded_[static_cast<size_t>(r * original_->in + c)] = 0;
    return decoded_;
  }

  // Writes codes and scales into the format's tensors, through the strips that the host's quantisers write. If a
  // moment is given, the host continues the descent.
  void write(const cuda::GptqPlan& plan, const cuda::GptqCodes& codes, std::span<const float> moment,
             GptqResult& result) {
    const LinearWeight& weight = result.weight;
    const Levels levels = plan.spec.kind == Kind::grid ? Levels(plan.spec, plan.codebook) : Levels(plan.spec);
    std::vector<Strip> kept(moment.empty() ? 0 : static_cast<size_t>(strips(weight.out)),
                            Strip(plan.spec, weight.out, weight.in, 0));
    if (!moment.empty()) decoded();
    pool_.run(strips(weight.out), [&](int64_t job, int) {
      Strip strip = moment.empty() ? Strip(plan.spec, weight.out, weight.in, job)
                                   : Strip(plan.spec, decoded_, weight.out, weight.in, job);
      fill(levels, codes, strip);
      if (kept.empty())
        emit(strip, levels, result.weight);
      else
        kept[static_cast<size_t>(job)] = std::move(strip);
    });
    if (kept.empty()) return;
    result.report.loss =
        descend_curvature(plan.spec, levels, host_hessian(), moment, weight.out, kCurvaturePasses, kept, pool_).outputs;
    pool_.run(strips(weight.out),
              [&](int64_t job, int) { emit(kept[static_cast<size_t>(job)], levels, result.weight); });
  }

  static void fill(const Levels& levels, const cuda::GptqCodes& codes, Strip& strip) {
    for (int64_t r = 0; r < strip.rows; ++r) {
      const int64_t row = strip.first + r;
      for (int64_t c = 0; c < strip.in; ++c)
        strip.level[c * kLanes + r] = levels.level(codes.code[static_cast<size_t>(row * strip.in + c)]);
      for (int64_t g = 0; g < strip.groups; ++g) {
        strip.scale[g * kLanes + r] = codes.scale[static_cast<size_t>(row * strip.groups + g)];
        strip.offset[g * kLanes + r] = codes.offset[static_cast<size_t>(row * strip.groups + g)];
      }
      strip.row_scale[r] = codes.row_scale[static_cast<size_t>(row)];
    }
  }

  const Hessian& host_hessian() {
    if (!host_) {
      host_.emplace(hessian(), HessianFactor{});
    }
    return host_->first;
  }

  // Quantises with the host's own quantiser, for which the device's Hessian is factorised once more on the host.
  GptqResult on_host(const FormatSpec& spec, const GptqOptions& options) {
    const Hessian& hessian = host_hessian();
    if (host_->second.in == 0) {
      spdlog::info("{} with these steps is not quantised on the GPU: the CPU does it", to_string(spec));
      host_->second = fidelio::factorize(hessian, options.damping, options.act_order, pool_);
    }
    return quantize_gptq(spec, decoded(), original_->out, original_->in, hessian, host_->second, options, pool_);
  }

  OpenStream stream_;
  cuda::SecondOrder order_;
  cuda::Feedback feedback_;
  cuda::Gptq gptq_;
  CudaVectors vectors_;
  ThreadPool& pool_;
  const LinearWeight* original_ = nullptr;
  cuda::DeviceBuffer values_;
  std::vector<float> decoded_;
  std::optional<std::pair<Hessian, HessianFactor>> host_;
};

}  // namespace

std::unique_ptr<Workbench> make_cuda_workbench(int gpu, ThreadPool& pool) {
  return std::make_unique<CudaWorkbench>(gpu, pool);
}

}  // namespace fidelio
