// This file computes a layer and its backward pass, written once over a Device. Of a layer's forward pass only its
// input is kept. backward() runs the layer again up to its last product, unless that layer was the last one run, and
// then goes back through it.
//
//   x --+-- norm - q k v - (norm of heads) - rope - attend - o --(+)-- m --+-- norm - gate up - swiglu - down --(+)-- y
//       +---------------------------------------------------------+        +-------------------------------------+
#pragma once
#include <vector>

#include "arch/model_config.h"
#include "train/device.h"

namespace fidelio::train {

// A LinearView holds a linear's weight as the operations read it, and where its gradients are added. Null gradients
// mean that it is frozen. The view owns nothing.
template <typename Real>
struct LinearView {
  int64_t out = 0, in = 0;
  const Real *weight = nullptr, *bias = nullptr;
  Real *weight_gradient = nullptr, *bias_gradient = nullptr;
  Real* output_moment = nullptr;  // (out, out): dy^T dy is added here (salience.h), unless it is null
  bool trains() const { return weight_gradient || bias_gradient || output_moment; }
};
template <typename Real>
struct NormView {
  const Real* weight = nullptr;
  Real* gradient = nullptr;
};
template <typename Real>
struct LayerView {
  LinearView<Real> q, k, v, o, gate, up, down;
  NormView<Real> attn, mlp, q_norm, k_norm;  // the last two are null if the model has none
  AttentionSizes attention;
};
template <typename Real>
struct NetworkView {
  LinearView<Real> embedding, head;  // if tied, both have the same pointers
  std::vector<LayerView<Real>> layers;
  NormView<Real> final;
};

// Throws Error if the forward pass here cannot compute this model.
void check_known(const ModelConfig& config);
// Returns the sizes of one layer. Without frequencies its heads are not rotated by position.
AttentionSizes attention_sizes(const ModelConfig& config, int layer);

template <class D>
void linear(D& device, const LinearView<typename D::Real>& w, int64_t n, const typename D::Real* x, bool add,
            typename D::Real* y) {
  device.multiply({n, w.out, w.in, x, false, w.weight, true, add ? typename D::Real{1} : typename D::Real{0}, y});
  if (w.bias != nullptr) device.add_bias(w.bias, n, w.out, y);
}

// Computes dx = dy W (or dx += dy W with `add`; nothing if dx is null), and the weight's own gradients.
template <class D>
void linear_backward(D& device, const LinearView<typename D::Real>& w, int64_t n, const typename D::Real* x,
                     const typename D::Real* dy, bool add, typename D::Real* dx) {
  using Real = typename D::Real;
  [[maybe_unused]] const typename D::Held held = device.hold(dy, n * w.out);
  if (dx != nullptr) device.multiply({n, w.in, w.out, dy, false, w.weight, false, add ? Real{1} : Real{0}, dx});
  if (w.weight_gradient != nullptr) device.multiply({w.out, w.in, n, dy, true, x, false, Real{1}, w.weight_gradient});
  if (w.bias_gradient != nullptr) device.sum_rows(dy, n, w.out, w.bias_gradient);
  if (w.output_moment != nullptr) device.multiply({w.out, w.out, n, dy, true, dy, false, Real{1}, w.output_moment});
}

// A Block computes layers of one model, for up to `rows` rows at a time.
template <class D>
class Block {
 public:
  using Real = typename D::Real;
  using Rows = typename D::Rows;
  using Held = typename D::Held;

  Block(D& device, const ModelConfig& config, int64_t rows) : device_(device), config_(config), rows_(rows) {
    const int64_t d = config.d, f = config.f, qe = int64_t{config.h} * config.e, ke = int64_t{config.hk} * config.e;
    check_known(config);
    for (auto [array, columns] : {std::pair{&normed_, d},
                                  {&middle_, d},
                                  {&dnormed_, d},
                                  {&q_, qe},
                                  {&k_, ke},
                                  {&v_, ke},
                                  {&attended_, qe},
                                  {&dq_, qe},
                                  {&dk_, ke},
                                  {&dv_, ke},
                                  {&dattended_, qe},
                                  {&gate_, f},
                                  {&up_, f},
                                  {&gated_, f},
                                  {&lse_, int64_t{config.h}}})
      *array = device.allocate(rows * columns);
    if (has_qk_norm()) q_raw_ = device.allocate(rows * qe), k_raw_ = device.allocate(rows * ke);
  }

  // Returns how many values its matrices have for each row.
  static int64_t row_values(const ModelConfig& c) {
    const int64_t qe = int64_t{c.h} * c.e, ke = int64_t{c.hk} * c.e;
    return 3 * c.d + 4 * qe + 4 * ke + 3 * c.f + c.h + (c.blocks.qk_norm == QkNorm::head ? qe + ke : 0);
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
    attention_backward(w, rows, x, dy);
  }

 private:
  bool has_qk_norm() const { return config_.blocks.qk_norm == QkNorm::head; }
  void turn(const LayerView<Real>& w, const Rows& rows, bool back, Real* q, Real* k) {
    if (w.attention.frequencies.empty()) return;
    device_.rope(rows, w.attention, config_.h, back, q);
    device_.rope(rows, w.attention, config_.hk, back, k);
  }

  // Computes everything up to middle_ = x + o(attention).
  void first_half(const LayerView<Real>& w, const Rows& rows, const Real* x) {
    const int64_t n = rows.rows();
    check(n <= rows_, "a step of {} rows, room for {}", n, rows_);
    held_normed_ = device_.norm_for_products(x, w.attn.weight, config_.rms_eps, n, config_.d, normed_.get());
    Real *q = has_qk_norm() ? q_raw_.get() : q_.get(), *k = has_qk_norm() ? k_raw_.get() : k_.get();
    linear(device_, w.q, n, normed_.get(), false, q);
    linear(device_, w.k, n, normed_.get(), false, k);
    linear(device_, w.v, n, normed_.get(), false, v_.get());
    if (has_qk_norm()) {
      device_.norm(q, w.q_norm.weight, config_.rms_eps, n * config_.h, config_.e, q_.get());
      device_.norm(k, w.k_norm.weight, config_.rms_eps, n * config_.hk, config_.e, k_.get());
    }
    turn(w, rows, false, q_.get(), k_.get());
    device_.attend(rows, w.attention, q_.get(), k_.get(), v_.get(), attended_.get(), lse_.get());
    device_.copy(x, middle_.get(), n * config_.d);
    linear(device_, w.o, n, attended_.get(), true, middle_.get());
  }

  // Computes everything up to gated_. Then normed_ is the input of gate and up.
  void second_half(const LayerView<Real>& w, int64_t n) {
    held_normed_ = device_.norm_for_products(middle_.get(), w.mlp.weight, config_.rms_eps, n, config_.d, normed_.get());
    linear(device_, w.gate, n, normed_.get(), false, gate_.get());
    linear(device_, w.up, n, normed_.get(), false, up_.get());
    held_gated_ = device_.swiglu(gate_.get(), up_.get(), n * config_.f, gated_.get());
  }

  // On entry dy holds the gradient of middle_; on return it holds that of x.
  void attention_backward(const LayerView<Real>& w, const Rows& rows, const Real* x, Real* dy) {
    const int64_t n = rows.rows();
    linear_backward(device_, w.o, n, attended_.get(), dy, false, dattended_.get());
    device_.attend_backward(rows, w.attention, q_.get(), k_.get(), v_.get(), attended_.get(), lse_.get(),
                            dattended_.get(), dq_.get(), dk_.get(), dv_.get());
    turn(w, rows, true, dq_.get(), dk_.get());
    if (has_qk_norm()) {  // q_ and k_ are not needed any more, so the gradients of the raw heads take their places
      device_.norm_backward(q_raw_.get(), w.q_norm.weight, config_.rms_eps, n * config_.h, config_.e, dq_.get(),
                            q_.get(), false, w.q_norm.gradient);
      device_.norm_backward(k_raw_.get(), w.k_norm.weight, config_.rms_eps, n * config_.hk, config_.e, dk_.get(),
                            k_.get(), false, w.k_norm.gradient);
    }
    const Real *dq = has_qk_norm() ? q_.get() : dq_.get(), *dk = has_qk_norm() ? k_.get() : dk_.get();
    held_normed_ = device_.norm_for_products(x, w.attn.weight, config_.rms_eps, n, config_.d, normed_.get());
    linear_backward(device_, w.q, n, normed_.get(), dq, false, dnormed_.get());
    linear_backward(device_, w.k, n, normed_.get(), dk, true, dnormed_.get());
    linear_backward(device_, w.v, n, normed_.get(), dv_.get(), true, dnormed_.get());
    device_.norm_backward(x, w.attn.weight, config_.rms_eps, n, config_.d, dnormed_.get(), dy, true, w.attn.gradient);
  }

  using Array = std::shared_ptr<Real[]>;
  D& device_;
  ModelConfig config_;
  int64_t rows_;
  Array normed_, middle_, dnormed_;                   // (n, d)
  Array q_, k_, v_, attended_, q_raw_, k_raw_, lse_;  // (n, h e), (n, hk e), (n, h)
  Array dq_, dk_, dv_, dattended_;
  Array gate_, up_, gated_;        // (n, f)
  Held held_normed_, held_gated_;  // normed_ and gated_ are read by products only
};

}  // namespace fidelio::train
