// GPTQ and the coordinate descent after it, on the device: quant/quantize.h says what they are and its files do the
// same on the host, step for step. Integers and grids with groups of 16, 32, 64 or 128 columns.
//
// A matrix (out, in) is one warp a row wherever columns follow each other: 128 of them at a time, four a lane, while
// everything to their right waits for one FP32 product.
//
//   step of a block  [ 0 .. 31 | 32 .. 63 | 64 .. 95 | 96 .. 127 ]      lane l holds columns l, 32 + l, 64 + l, 96 + l;
//                      lane 0..31                                      the one whose turn it is tells the others its
//                                                                      error, U or H of the block are in shared memory
#pragma once
#include <cstdint>
#include <vector>

#include "formats/format_spec.h"
#include "quant/cuda/gptq_kernels.h"
#include "quant/cuda/second_order.h"

namespace fidelio::cuda {

// What is done to a matrix.
struct GptqPlan {
  FormatSpec spec;
  std::vector<int8_t> codebook;  // of a grid
  bool range_search = true;
  int descent_passes = 4;
};

// On the host: codes (for grids places in the codebook), and scale and offset of every group in value = scale level +
// offset.
struct GptqCodes {
  std::vector<uint8_t> code;                 // (out, in)
  std::vector<float> scale, offset;          // (out, groups)
  std::vector<float> row_scale;              // (out): formats with a second level of scales
  double energy = 0, before = 0, after = 0;  // tr(W H W^T), and the losses after the error feedback and the descent
};

class Gptq {
 public:
  static bool takes(const FormatSpec& spec);

  explicit Gptq(Stream stream) : stream_(stream), blas_(stream) {}
  // `values` (out, in) on the device is used up: columns without data become zeros. The factor is `order`'s.
  GptqCodes quantise(const GptqPlan& plan, SecondOrder& order, float* values, int64_t out);
  // The scales alone, with a diagonal metric of one weight a column (on the device).
  GptqCodes fit(const GptqPlan& plan, const float* weight, const float* values, int64_t out, int64_t in);

 private:
  void begin(const GptqPlan& plan, int64_t out, int64_t in);
  void fit_scales(const float* weight, const float* values);
  void error_feedback(SecondOrder& order, const float* values);
  void descend(SecondOrder& order, const float* values, int passes);
  void refresh(SecondOrder& order, const float* values);
  double dot(const float* a, const float* b);
  GptqCodes collect();

  Stream stream_;
  Blas blas_;
  GptqShape shape_;
  GptqRules rules_;
  DeviceBuffer codes_, scale_, offset_, row_scale_, work_, gradient_, change_, sums_;
};

}  // namespace fidelio::cuda
