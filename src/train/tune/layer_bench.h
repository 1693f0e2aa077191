// A LayerBench measures how long one step of tuning a model's first layer takes and how much memory it needs, with
// random weights. It is for shapes whose weights are not at hand. The step is that of layer_stage.h: forward, backward,
// gradients of codes, AdamW and decoding.
#pragma once
#include <chrono>

#include "arch/stops.h"
#include "core/rng.h"
#include "train/matrix.h"
#include "train/network.h"
#include "train/tune/tuner.h"

namespace fidelio::train {

template <class D>
class LayerBench {
 public:
  using Real = typename D::Real;
  using Clock = std::chrono::steady_clock;

  LayerBench(D& device, const ModelConfig& config, const FormatSpec& spec, int64_t sequences, int64_t context)
      : device_(device), config_(config), rows_(sequences * context), block_(device, config, rows_) {
    view_.layers = layer_views<Real>(config);
    for (const LinearId id : linears_of(config)) {
      if (id.layer != 0) continue;
      const Shape shape = shape_of(config, id);
      matrices_.push_back(std::make_unique<Matrix<D>>(device, "bench", random_weight(spec, shape[0], shape[1]),
                                                      std::span<const float>{}, 0.0f));
      slot(view_, id) = matrices_.back()->view();
    }
    add_small_weights();
    for (auto* array : {&input_, &target_, &output_}) *array = device.allocate(rows_ * config.d);
    std::vector<float> values(static_cast<size_t>(rows_ * config.d));
    for (float& x : values) x = static_cast<float>(rng_.uniform() - 0.5);
    device.upload(values, input_.get()), device.upload(values, target_.get());
    Sequences all;
    std::vector<int32_t> ids(static_cast<size_t>(context));
    for (int64_t i = 0; i < sequences; ++i) {
      for (int32_t& id : ids) id = static_cast<int32_t>(rng_.below(static_cast<uint64_t>(config.v)));
      all.append(ids);
    }
    rows_of_step_ = device.load(all);
  }

  // Returns the median of the seconds of a step.
  double time(int steps) {
    std::vector<double> seconds;
    one_step(1);  // libraries are loaded and scratch memory grows in this step
    for (int i = 0; i < steps; ++i) {
      wait();
      const auto begin = Clock::now();
      one_step(i + 2);
      wait();
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  // Returns the operations per second of a product of this size, with its factors rounded as in a step.
  double product_rate(int64_t n) {
    auto a = device_.allocate(n * n), b = device_.allocate(n * n), c = device_.allocate(n * n);
    double best = 0;
    for (int i = 0; i < 5; ++i) {
      wait();
      const auto begin = Clock::now();
      for (int k = 0; k < 4; ++k) device_.multiply({n, n, n, a.get(), false, b.get(), true, Real{0}, c.get()});
      wait();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / 4;
      best = std::max(best, 2.0 * static_cast<double>(n * n * n) / seconds);
    }
    return best;
  }

 private:
  // Norms and convolutions multiply by 1, and all else that tuning leaves as it is adds 0.
  void add_small_weights() {
    const DeltaNet& net = config_.delta;
    const int64_t most = std::max({int64_t{config_.d}, int64_t{config_.e}, net.channels() * net.kernel});
    ones_ = device_.allocate(most),
    zeros_ = device_.allocate(std::max<int64_t>(1, net.value_heads * int64_t{config_.d}));
    device_.upload(std::vector<float>(static_cast<size_t>(most), 1.0f), ones_.get());
    for (auto [layer, which] : norms_of(config_))
      if (layer == 0) slot(view_, layer, which).weight = ones_.get();
    for (LinearId id : fixed_linears_of(config_))
      if (id.layer == 0) slot(view_, id) = {.out = net.value_heads, .in = config_.d, .weight = zeros_.get()};
    DeltaView<Real>& delta = view_.layers[0].delta;
    delta.convolution = ones_.get(), delta.log_rate = delta.step_bias = zeros_.get();
  }
  LinearWeight random_weight(const FormatSpec& spec, int64_t out, int64_t in) {
    check(spec.kind == Kind::integer && spec.scale == ScaleKind::u8, "a layer of integers with 8-bit scales, not {}",
          to_string(spec));
    LinearWeight w = allocate_weight(spec, out, in);
    auto& integer = std::get<IntGroup>(w.main);
    for (OwnedTensor& plane : integer.codes.planes)
      for (uint8_t& x : plane.as<uint8_t>()) x = static_cast<uint8_t>(rng_.below(256));
    for (uint8_t& x : integer.scale.as<uint8_t>()) x = 128;
    for (float& x : integer.row_scale.as<float>())
      x = static_cast<float>(1 / (128.0 * (1 << spec.bits) * std::sqrt(static_cast<double>(in))));
    for (int64_t row = 0; !spec.symmetric && row < out; ++row)
      for (int64_t g = 0; g < spec.groups(in); ++g) set_zero(integer, row, g, 1 << (spec.bits - 1));
    return w;
  }

  void wait() {
    std::vector<float> one(1);
    device_.download(output_.get(), one);
  }
  void one_step(int64_t step) {
    for (auto& m : matrices_) m->parameters([&](Parameter<D>& p) { device_.zero(p.gradient.get(), p.n); });
    block_.forward(view_.layers[0], rows_of_step_, input_.get(), output_.get());
    device_.scale_difference(target_.get(), 1 / static_cast<double>(rows_ * config_.d), rows_ * config_.d,
                             output_.get());
    block_.backward(view_.layers[0], rows_of_step_, input_.get(), output_.get(), true);
    for (auto& m : matrices_) {
      m->backward();
      m->parameters([&](Parameter<D>& p) { p.step(device_, {.rate = 1e-4, .step = step}, 1); });
      m->decode();
    }
  }

  D& device_;
  ModelConfig config_;
  int64_t rows_;
  Rng rng_{1};
  Block<D> block_;
  NetworkView<Real> view_;
  std::vector<std::unique_ptr<Matrix<D>>> matrices_;
  std::shared_ptr<Real[]> ones_, zeros_, input_, target_, output_;
  typename D::Rows rows_of_step_;
};

}  // namespace fidelio::train
