// This file multiplies FP32 activations, as f32 mode does. The matrix units take FP16, so every value is given to
// them as two:
//
//   x = f (high + low)     high = x / f rounded to FP16, low = what is left, rounded; f is a power of two for each row,
//                          so that a row's largest lies in [2^14, 2^15): 22 bits of every value within 2^-16 of it
//   x w = f_x f_w (high_x high_w + low_x high_w + high_x low_w)    the last only where FP16 does not hold the weight
//
// Sums are the FP32 sums of the matrix units, which truncate. Errors are 4 to 8 times those of FP32 multipliers, at a
// sixth of their time (NOTES.md). A row's result does not depend on the others (gemm.h).
#pragma once
#include <cstdint>

#include "kernels/cuda/linear/dense/gemm.h"
#include "kernels/cuda/rows/ops.h"

namespace fidelio::cuda {

class ExactProduct {
 public:
  // Computes y (n, out) = or += x (n, in) w^T + bias. Scratch memory grows with the largest product so far. If
  // cuBLASLt cannot take the weight's row length, linear_f32 does the product.
  void run(Stream stream, Gemm& gemm, const WeightValues& w, const float* bias, const float* x, int64_t n, float* y,
           bool add);

 private:
  void run_outputs(Stream stream, Gemm& gemm, const WeightValues& w, int64_t first, int64_t count, int64_t n);

  DeviceBuffer inputs_, input_factor_, high_, low_, output_factor_, product_, rest_;
};

// These are the kernels behind it. The first splits values (rows, columns) into high and low halves and computes the
// factor of each row.
void split_rows(Stream stream, const float* values, int64_t rows, int64_t columns, uint16_t* high, uint16_t* low,
                float* factor);
// This does the same for rows [first, first + count) of a weight. It is in weights.cu, which knows how values are
// packed.
void split_weight(Stream stream, const WeightValues& w, int64_t first, int64_t count, uint16_t* high, uint16_t* low,
                  float* factor);
// Computes y (n, stride), from column `first` on, = or += input factor x output factor x (product[m] + product[n + m]
// + rest[m]) + bias. The products are (., count). `rest` and the output factors may be null.
struct Join {
  const float *product, *rest, *input_factor, *output_factor, *bias;
  int64_t n, count, first, stride;
  bool add;
};
void join_products(Stream stream, const Join& join, float* y);

}  // namespace fidelio::cuda
