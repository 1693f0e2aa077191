// This file lets a linear correct, on the GPU, the error that quantised layers before it have made. quant/feedback.h
// explains the method; this is the same computation with the same shrinkage. The host sums C and H and subtracts them.
// Here the inputs are subtracted first and D = C - H is summed, so that TF32 rounds a small number and not two large
// ones.
#pragma once
#include <span>

#include "quant/cuda/second_order.h"

namespace fidelio::cuda {

class Feedback {
 public:
  explicit Feedback(Stream stream) : stream_(stream), blas_(stream), sums_blas_(stream, Arithmetic::tf32) {}
  void begin(int64_t in);  // sets D = 0
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
  Blas blas_, sums_blas_;
  int64_t in_ = 0, tokens_ = 0;
  DeviceBuffer sums_, source_, quantised_, difference_, inverse_, change_, step_;
};

// These are the kernels behind it. The first takes n values from those of `to`. The second writes the columns of
// d (in, in) in the order of the quantiser's steps.
void take_from(Stream stream, const float* values, int64_t n, float* to);
void order_difference(Stream stream, const float* d, const int32_t* order, int64_t in, float* ordered);
// Computes values (out, in) += factor * change (out, in), where the columns of `change` are in the order of the
// steps.
void add_ordered(Stream stream, const float* change, const int32_t* order, int64_t out, int64_t in, float factor,
                 float* values);

}  // namespace fidelio::cuda
