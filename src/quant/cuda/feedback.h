// This file lets a linear correct, on the GPU, the error that quantised layers before it have made. quant/feedback.h
// explains the method; this is the same computation with the same shrinkage.
#pragma once
#include <span>

#include "quant/cuda/second_order.h"

namespace fidelio::cuda {

class Feedback {
 public:
  explicit Feedback(Stream stream) : stream_(stream), blas_(stream) {}
  void begin(int64_t in);  // sets C = 0
  bool empty() const { return tokens_ == 0; }
  // Adds the rows (tokens, in) of the source's inputs, and of the inputs that the quantised layers before produce.
  // They may lie in the host's memory or the device's, and may be changed afterwards.
  void add(std::span<const float> source, std::span<const float> quantised);
  // Replaces `values` (out, in) on the device by the weight to quantise. `order` holds the statistics of the
  // quantised inputs, factorised. `trust` is the share of the correction that is applied.
  void target(SecondOrder& order, float trust, float* values, int64_t out);

  int64_t tokens() const { return tokens_; }

 private:
  Stream stream_;
  Blas blas_;
  int64_t in_ = 0, tokens_ = 0;
  DeviceBuffer sums_, source_, quantised_, difference_, inverse_, change_, step_;
};

// These are the kernels behind it. The first writes difference (in, in): the columns of C - H in the order of the
// quantiser's steps.
void ordered_difference(Stream stream, const float* c, const float* h, const int32_t* order, int64_t in,
                        float* difference);
// Computes values (out, in) += factor * change (out, in), where the columns of `change` are in the order of the
// steps.
void add_ordered(Stream stream, const float* change, const int32_t* order, int64_t out, int64_t in, float factor,
                 float* values);

}  // namespace fidelio::cuda
