// What the layers before a linear have lost, put right by the linear itself, on the device: quant/feedback.h says what
// it is, and this is the same computation with the same trust in it.
#pragma once
#include <span>

#include "quant/cuda/second_order.h"

namespace fidelio::cuda {

class Feedback {
 public:
  explicit Feedback(Stream stream) : stream_(stream), blas_(stream) {}
  void begin(int64_t in);  // C = 0
  bool empty() const { return tokens_ == 0; }
  // Rows (tokens, in) of the source's inputs and of those that the quantised layers before give, in the host's memory
  // or the device's; they may be changed afterwards.
  void add(std::span<const float> source, std::span<const float> quantised);
  // Makes `values` (out, in) on the device the weight to quantise. `order` is of the quantised inputs, factorised.
  void target(SecondOrder& order, float trust, float* values, int64_t out);

  int64_t tokens() const { return tokens_; }

 private:
  Stream stream_;
  Blas blas_;
  int64_t in_ = 0, tokens_ = 0;
  DeviceBuffer sums_, source_, quantised_, difference_, inverse_, change_, step_;
};

// The kernels behind it. difference (in, in): columns of C - H in the order of the steps.
void ordered_difference(Stream stream, const float* c, const float* h, const int32_t* order, int64_t in,
                        float* difference);
// values (out, in) += factor * change (out, in), whose columns are steps.
void add_ordered(Stream stream, const float* change, const int32_t* order, int64_t out, int64_t in, float factor,
                 float* values);

}  // namespace fidelio::cuda
