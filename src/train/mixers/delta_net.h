// This file computes a gated delta net as the mixer of a layer, and its backward pass, written once over a
// HybridDevice:
//
//   input --+-- qkv - convolve --+-- delta rule - norm of heads - times function of z - out - added
//           +-- b a -------------+                                |
//           +-- z ------------------------------------------------+
#pragma once
#include "train/views.h"

namespace fidelio::train {

template <class D>
class DeltaMixer {
 public:
  using Real = typename D::Real;
  using Rows = typename D::Rows;

  DeltaMixer(D& device, const ModelConfig& config, int64_t rows)
      : device_(device),
        net_(config.delta),
        eps_(config.rms_eps),
        function_(net_.gate == Activation::sigmoid ? Gate::sigmoid : Gate::silu) {
    for (Array* array : {&qkv_, &convolved_}) *array = device.allocate(rows * net_.channels());
    for (Array* array : {&z_, &read_, &normed_, &heads_, &dheads_}) *array = device.allocate(rows * net_.values());
    for (Array* array : {&b_, &a_}) *array = device.allocate(rows * net_.value_heads);
  }

  // Returns how many values its matrices have for each row.
  static int64_t row_values(const ModelConfig& c) {
    return 2 * c.delta.channels() + 5 * c.delta.values() + 2 * c.delta.value_heads;
  }

  // Adds the mixer's output for the rows of `input` (n, d) to `sum` (n, d).
  void forward(const DeltaView<Real>& w, const Rows& rows, const Real* input, Real* sum) {
    const int64_t n = rows.rows();
    linear(device_, w.qkv, n, input, false, qkv_.get());
    linear(device_, w.z, n, input, false, z_.get());
    linear(device_, w.b, n, input, false, b_.get());
    linear(device_, w.a, n, input, false, a_.get());
    device_.convolve(rows, net_, w.convolution, qkv_.get(), convolved_.get());
    device_.delta_rule(rows, net_, {w.log_rate, w.step_bias}, convolved_.get(), b_.get(), a_.get(), read_.get());
    device_.norm(read_.get(), w.norm.weight, eps_, n * net_.value_heads, net_.value_dim, normed_.get());
    device_.gated(function_, z_.get(), normed_.get(), n * net_.values(), heads_.get());
    linear(device_, w.out, n, heads_.get(), true, sum);
  }

  // Must follow forward() of the same rows, whose values gradients replace. Computes dinput (n, d) from the gradient of
  // the sum, dsum (n, d).
  void backward(const DeltaView<Real>& w, const Rows& rows, const Real* input, const Real* dsum, Real* dinput) {
    const int64_t n = rows.rows();
    linear_backward(device_, w.out, n, heads_.get(), dsum, false, dheads_.get());
    device_.gated_backward(function_, z_.get(), normed_.get(), n * net_.values(), dheads_.get());
    device_.norm_backward(read_.get(), w.norm.weight, eps_, n * net_.value_heads, net_.value_dim, dheads_.get(),
                          normed_.get(), false, w.norm.gradient);
    device_.delta_rule_backward(rows, net_, {w.log_rate, w.step_bias}, normed_.get(), convolved_.get(), b_.get(),
                                a_.get());
    device_.convolve_backward(rows, net_, w.convolution, qkv_.get(), convolved_.get());
    linear_backward(device_, w.qkv, n, input, convolved_.get(), false, dinput);
    linear_backward(device_, w.z, n, input, z_.get(), true, dinput);
    linear_backward(device_, w.b, n, input, b_.get(), true, dinput);
    linear_backward(device_, w.a, n, input, a_.get(), true, dinput);
  }

 private:
  using Array = std::shared_ptr<Real[]>;
  D& device_;
  DeltaNet net_;
  double eps_;
  Gate function_;
  Array qkv_, convolved_;                     // (n, channels)
  Array z_, read_, normed_, heads_, dheads_;  // (n, values)
  Array b_, a_;                               // (n, value_heads)
};

}  // namespace fidelio::train
