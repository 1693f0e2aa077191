#include "quant/cuda/feedback.h"

#include "core/error.h"

namespace fidelio::cuda {

void Feedback::begin(int64_t in) {
  in_ = in;
  tokens_ = 0;
  reserve(stream_, sums_, in * in * 4);
  zero_device(stream_, sums_.data(), static_cast<size_t>(in * in) * 4);
}

void Feedback::add(std::span<const float> source, std::span<const float> quantised) {
  check(source.size() == quantised.size() && static_cast<int64_t>(source.size()) % in_ == 0,
        "inputs of {} and {} values are not the same rows of {} columns", source.size(), quantised.size(), in_);
  const int64_t tokens = static_cast<int64_t>(source.size()) / in_;
  tokens_ += tokens;
  reserve(stream_, source_, tokens * in_ * 4);
  reserve(stream_, quantised_, tokens * in_ * 4);
  to_device(stream_, source_.data(), source.data(), source.size_bytes());
  to_device(stream_, quantised_.data(), quantised.data(), quantised.size_bytes());
  wait_for(stream_);
  take_from(stream_, quantised_.as<float>(), tokens * in_, source_.as<float>());
  sums_blas_.multiply(in_, in_, tokens, 1, {source_.as<float>(), in_}, true, {quantised_.as<float>(), in_}, 1,
                      {sums_.as<float>(), in_});
}

void Feedback::target(SecondOrder& order, float trust, float* values, int64_t out) {
  check(order.in() == in_, "feedback over {} columns for a Hessian of {}", in_, order.in());
  for (DeviceBuffer* square : {&difference_, &inverse_}) reserve(stream_, *square, in_ * in_ * 4);
  for (DeviceBuffer* wide : {&change_, &step_}) reserve(stream_, *wide, out * in_ * 4);
  order_difference(stream_, sums_.as<float>(), order.order(), in_, difference_.as<float>());
  // The inverse is (H + damping)^-1 = U^T U.
  float* upper = const_cast<float*>(order.upper());
  blas_.multiply(in_, in_, in_, 1, {upper, in_}, true, {upper, in_}, 0, {inverse_.as<float>(), in_});
  blas_.multiply(out, in_, in_, 1, {values, in_}, false, {difference_.as<float>(), in_}, 0, {step_.as<float>(), in_});
  blas_.multiply(out, in_, in_, 1, {step_.as<float>(), in_}, false, {inverse_.as<float>(), in_}, 0,
                 {change_.as<float>(), in_});
  add_ordered(stream_, change_.as<float>(), order.order(), out, in_, trust, values);
}

}  // namespace fidelio::cuda
