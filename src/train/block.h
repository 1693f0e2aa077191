// This file computes a layer and its backward pass, written once over a Device. Of a layer's forward pass only its
// input is kept. backward() runs the layer again up to its last product, unless that layer was the last one run, and
// then goes back through it.
//
//   x --+-- norm - mixer --(+)-- m --+-- norm - gate up - swiglu - down --(+)-- y
//       +-------------------+        +-------------------------------------+
//
// The mixer is attention (mixers/attention.h) or a gated delta net (mixers/delta_net.h).
#pragma once
#include <optional>

#include "train/mixers/attention.h"
#include "train/mixers/delta_net.h"

namespace fidelio::train {

// A Block computes layers of one model, for up to `rows` rows at a time.
template <class D>
class Block {
 public:
  using Real = typename D::Real;
  using Rows = typename D::Rows;
  using Held = typename D::Held;

  Block(D& device, const ModelConfig& config, int64_t rows) : device_(device), config_(config), rows_(rows) {
    check_known(config, !HybridDevice<D>);
    for (auto [array, columns] : {std::pair{&normed_, int64_t{config.d}},
                                  {&middle_, int64_t{config.d}},
                                  {&dnormed_, int64_t{config.d}},
                                  {&gate_, int64_t{config.f}},
                                  {&up_, int64_t{config.f}},
                                  {&gated_, int64_t{config.f}}})
      *array = device.allocate(rows * columns);
    if (has_mixer(config, Mixer::attention)) attention_.emplace(device, config, rows);
    if constexpr (HybridDevice<D>)
      if (has_mixer(config, Mixer::delta_net)) delta_.emplace(device, config, rows);
  }

  // Returns how many values its matrices have for each row.
  static int64_t row_values(const ModelConfig& c) {
    return 3 * (int64_t{c.d} + c.f) + (has_mixer(c, Mixer::attention) ? AttentionMixer<D>::row_values(c) : 0) +
           (has_mixer(c, Mixer::delta_net) ? DeltaMixer<D>::row_values(c) : 0);
  }

  // Computes y (n, d) from x (n, d); both may be the same memory.
  void forward(const LayerView<Real>& w, const Rows& rows, const Real* x, Real* y) {
    const int64_t n = rows.rows();
    first_half(w, rows, x);
    second_half(w, n);
    device_.copy(middle_.get(), y, n * config_.d);
    linear(device_, w.down, n, gated_.get(), true, y);
  }

  // Replaces dy (n, d) by dx. `fresh` says that the last forward pass was of this layer and these rows, so that it
  // need not be run again.
  void backward(const LayerView<Real>& w, const Rows& rows, const Real* x, Real* dy, bool fresh = false) {
    const int64_t n = rows.rows();
    if (!fresh) {
      first_half(w, rows, x);
      second_half(w, n);
    }
    {
      // gated_ is down's input until its gradient takes its place.
      [[maybe_unused]] const Held held = device_.hold(dy, n * config_.d);
      if (w.down.trains()) linear_backward<D>(device_, w.down, n, gated_.get(), dy, false, nullptr);
      held_gated_ = {};
      device_.multiply({n, w.down.in, w.down.out, dy, false, w.down.weight, false, Real{0}, gated_.get()});
    }
    {
      const bool biased = w.gate.bias_gradient != nullptr || w.up.bias_gradient != nullptr;
      [[maybe_unused]] const auto held =
          device_.swiglu_backward(gate_.get(), up_.get(), n * config_.f, gated_.get(), biased);
      linear_backward(device_, w.gate, n, normed_.get(), gate_.get(), false, dnormed_.get());
      linear_backward(device_, w.up, n, normed_.get(), up_.get(), true, dnormed_.get());
    }
    device_.norm_backward(middle_.get(), w.mlp.weight, config_.rms_eps, n, config_.d, dnormed_.get(), dy, true,
                          w.mlp.gradient);
    // Now dy is the gradient of middle_.
    norm_input(w, n, x);
    if (w.mixer == Mixer::attention)
      attention_->backward(w, rows, normed_.get(), dy, dnormed_.get());
    else if constexpr (HybridDevice<D>)
      delta_->backward(w.delta, rows, normed_.get(), dy, dnormed_.get());
    device_.norm_backward(x, w.attn.weight, config_.rms_eps, n, config_.d, dnormed_.get(), dy, true, w.attn.gradient);
  }

 private:
  void norm_input(const LayerView<Real>& w, int64_t n, const Real* x) {
    held_normed_ = device_.norm_for_products(x, w.attn.weight, config_.rms_eps, n, config_.d, normed_.get());
  }

  // Computes everything up to middle_ = x + mixer.
  void first_half(const LayerView<Real>& w, const Rows& rows, const Real* x) {
    const int64_t n = rows.rows();
    check(n <= rows_, "a step of {} rows, room for {}", n, rows_);
    norm_input(w, n, x);
    device_.copy(x, middle_.get(), n * config_.d);
    if (w.mixer == Mixer::attention)
      attention_->forward(w, rows, normed_.get(), middle_.get());
    else if constexpr (HybridDevice<D>)
      delta_->forward(w.delta, rows, normed_.get(), middle_.get());
  }

  // Computes everything up to gated_. Then normed_ is the input of gate and up.
  void second_half(const LayerView<Real>& w, int64_t n) {
    held_normed_ = device_.norm_for_products(middle_.get(), w.mlp.weight, config_.rms_eps, n, config_.d, normed_.get());
    linear(device_, w.gate, n, normed_.get(), false, gate_.get());
    linear(device_, w.up, n, normed_.get(), false, up_.get());
    held_gated_ = device_.swiglu(gate_.get(), up_.get(), n * config_.f, gated_.get());
  }

  using Array = std::shared_ptr<Real[]>;
  D& device_;
  ModelConfig config_;
  int64_t rows_;
  std::optional<AttentionMixer<D>> attention_;  // These are present where a layer has such a mixer.
  std::optional<DeltaMixer<D>> delta_;
  Array normed_, middle_, dnormed_;  // (n, d)
  Array gate_, up_, gated_;          // (n, f)
  Held held_normed_, held_gated_;    // normed_ and gated_ are read by products only
};

}  // namespace fidelio::train
