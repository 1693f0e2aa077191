// This file declares products of few outputs, such as the decays and shares of a delta net and the gate of a shared
// expert. Their weights stay as stored, and a product's own launch would take longer than its work.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

// The weights (out, columns) are FP16 times `factor`, or FP32; y is (n, out).
struct NarrowOutput {
  const uint16_t* half = nullptr;
  const float* single = nullptr;
  float factor = 1;
  float* y = nullptr;
  int out = 0;
};

// A NarrowProduct computes y (n, out) = normed(x (n, columns)) W^T for each output. With `norm` weights, normed(x) is
// x / sqrt(mean(x^2) + eps) * norm; without, it is x. 4 divides columns. A row's bits depend on nothing but the row.
constexpr int kMostNarrow = 4;          // outputs
constexpr int64_t kNarrowColumns = 64;  // the most columns of an output
struct NarrowProduct {
  const float *x = nullptr, *norm = nullptr;
  float eps = 0;
  int columns = 0, rows = 0;
  NarrowOutput outputs[kMostNarrow];
  int count = 0;  // 0 means that there is nothing to do
};
void narrow_product(Stream stream, const NarrowProduct& p);

}  // namespace fidelio::cuda
