// This file computes attention as the mixer of a layer, and its backward pass, written once over a Device:
//
//   input - q k v - (norm of heads) - rope - attend - (times sigmoid of a gate) - o - added
//
// Where there is a gate, the matrix q gives for each head first its query and then its gate.
#pragma once
#include "train/views.h"

namespace fidelio::train {

template <class D>
class AttentionMixer {
 public:
  using Real = typename D::Real;
  using Rows = typename D::Rows;

  AttentionMixer(D& device, const ModelConfig& config, int64_t rows) : device_(device), config_(config) {
    const int64_t qe = wide(config), ke = narrow(config);
    for (auto [array, columns] : {std::pair{&q_, qe},
                                  {&k_, ke},
                                  {&v_, ke},
                                  {&attended_, qe},
                                  {&dq_, qe},
                                  {&dk_, ke},
                                  {&dv_, ke},
                                  {&dattended_, qe},
                                  {&lse_, int64_t{config.h}}})
      *array = device.allocate(rows * columns);
    if (has_norms()) q_raw_ = device.allocate(rows * qe), k_raw_ = device.allocate(rows * ke);
    if (has_gate())
      both_ = device.allocate(rows * 2 * qe), gate_ = device.allocate(rows * qe), heads_ = device.allocate(rows * qe);
  }

  // Returns how many values its matrices have for each row.
  static int64_t row_values(const ModelConfig& c) {
    const int64_t qe = wide(c), ke = narrow(c);
    return 4 * (qe + ke) + c.h + (c.blocks.qk_norm == QkNorm::head ? qe + ke : 0) +
           (c.blocks.attention_gate ? 4 * qe : 0);
  }

  // Adds the mixer's output for the rows of `input` (n, d) to `sum` (n, d).
  void forward(const LayerView<Real>& w, const Rows& rows, const Real* input, Real* sum) {
    const int64_t n = rows.rows();
    Real *q = has_norms() ? q_raw_.get() : q_.get(), *k = has_norms() ? k_raw_.get() : k_.get();
    linear(device_, w.q, n, input, false, has_gate() ? both_.get() : q);
    linear(device_, w.k, n, input, false, k);
    linear(device_, w.v, n, input, false, v_.get());
    if constexpr (HybridDevice<D>)
      if (has_gate()) device_.split_pairs(both_.get(), n * config_.h, config_.e, q, gate_.get());
    if (has_norms()) {
      device_.norm(q, w.q_norm.weight, config_.rms_eps, n * config_.h, config_.e, q_.get());
      device_.norm(k, w.k_norm.weight, config_.rms_eps, n * config_.hk, config_.e, k_.get());
    }
    turn(w, rows, false, q_.get(), k_.get());
    device_.attend(rows, w.attention, q_.get(), k_.get(), v_.get(), attended_.get(), lse_.get());
    if constexpr (HybridDevice<D>)
      if (has_gate()) device_.gated(Gate::sigmoid, gate_.get(), attended_.get(), n * wide(config_), heads_.get());
    linear(device_, w.o, n, heads(), true, sum);
  }

  // Must follow forward() of the same rows. Computes dinput (n, d) from the gradient of the sum, dsum (n, d).
  void backward(const LayerView<Real>& w, const Rows& rows, const Real* input, const Real* dsum, Real* dinput) {
    const int64_t n = rows.rows();
    linear_backward(device_, w.o, n, heads(), dsum, false, dattended_.get());
    if constexpr (HybridDevice<D>)
      if (has_gate())
        device_.gated_backward(Gate::sigmoid, gate_.get(), attended_.get(), n * wide(config_), dattended_.get());
    device_.attend_backward(rows, w.attention, q_.get(), k_.get(), v_.get(), attended_.get(), lse_.get(),
                            dattended_.get(), dq_.get(), dk_.get(), dv_.get());
    turn(w, rows, true, dq_.get(), dk_.get());
    if (has_norms()) {  // q_ and k_ are not needed any more, so the gradients of the raw heads take their places
      device_.norm_backward(q_raw_.get(), w.q_norm.weight, config_.rms_eps, n * config_.h, config_.e, dq_.get(),
                            q_.get(), false, w.q_norm.gradient);
      device_.norm_backward(k_raw_.get(), w.k_norm.weight, config_.rms_eps, n * config_.hk, config_.e, dk_.get(),
                            k_.get(), false, w.k_norm.gradient);
    }
    const Real *dq = has_norms() ? q_.get() : dq_.get(), *dk = has_norms() ? k_.get() : dk_.get();
    if constexpr (HybridDevice<D>)
      if (has_gate()) {
        device_.join_pairs(dq, gate_.get(), n * config_.h, config_.e, both_.get());
        dq = both_.get();
      }
    linear_backward(device_, w.q, n, input, dq, false, dinput);
    linear_backward(device_, w.k, n, input, dk, true, dinput);
    linear_backward(device_, w.v, n, input, dv_.get(), true, dinput);
  }

 private:
  static int64_t wide(const ModelConfig& c) { return int64_t{c.h} * c.e; }
  static int64_t narrow(const ModelConfig& c) { return int64_t{c.hk} * c.e; }
  bool has_norms() const { return config_.blocks.qk_norm == QkNorm::head; }
  bool has_gate() const { return config_.blocks.attention_gate; }
  const Real* heads() const { return has_gate() ? heads_.get() : attended_.get(); }  // what o reads
  void turn(const LayerView<Real>& w, const Rows& rows, bool back, Real* q, Real* k) {
    if (w.attention.frequencies.empty()) return;
    device_.rope(rows, w.attention, config_.h, back, q);
    device_.rope(rows, w.attention, config_.hk, back, k);
  }

  using Array = std::shared_ptr<Real[]>;
  D& device_;
  ModelConfig config_;
  Array q_, k_, v_, attended_, q_raw_, k_raw_, lse_;  // (n, h e), (n, hk e), (n, h)
  Array both_, gate_, heads_;                         // (n, h 2 e), (n, h e), where there is a gate
  Array dq_, dk_, dv_, dattended_;
};

}  // namespace fidelio::train
