// This file runs GPTQ and the coordinate descent after it on the GPU. quant/quantize.h explains them, and its sources
// do the same on the host, step for step. It takes integers and grids with groups of 16, 32, 64 or 128 columns.
//
// One warp has one row of a matrix (out, in) wherever columns depend on the columns before. It handles 128 columns at
// a time, four per lane, while all columns to their right wait for one FP32 product.
//
//   step of a block  [ 0 .. 31 | 32 .. 63 | 64 .. 95 | 96 .. 127 ]      lane l holds columns l, 32 + l, 64 + l, 96 + l;
//                      lane 0..31                                      the current column's lane tells the others its
//                                                                      error; U or H of the block is in shared memory
#pragma once
#include <cstdint>
#include <vector>

#include "formats/format_spec.h"
#include "quant/cuda/gptq_kernels.h"
#include "quant/cuda/second_order.h"

namespace fidelio::cuda {

// A GptqPlan says how a matrix is to be quantised.
struct GptqPlan {
  FormatSpec spec;
  std::vector<int8_t> codebook;  // only for grids
  bool range_search = true;
  int descent_passes = 4;
};

// GptqCodes is the result on the host: codes (for grids, indices into the codebook), and for every group the scale
// and offset in value = scale level + offset.
struct GptqCodes {
  std::vector<uint8_t> code;         // (out, in)
  std::vector<float> scale, offset;  // (out, groups)
  std::vector<float> row_scale;      // (out): for formats with a second level of scales
  // tr(W H W^T), and the losses after the error feedback and after the descent.
  double energy = 0, before = 0, after = 0;
};

class Gptq {
 public:
  // Returns true if the format can be quantised here.
  static bool takes(const FormatSpec& spec);

  explicit Gptq(Stream stream) : stream_(stream), blas_(stream) {}
  // Quantises `values` (out, in) on the device, which are overwritten: columns without data become zeros. The factor
  // must have been made in `order`. The codes lie in memory that the next call writes again, because touching fresh
  // pages of it takes the host longer than the copy.
  const GptqCodes& quantise(const GptqPlan& plan, SecondOrder& order, float* values, int64_t out);
  // Fits the scales alone, for a diagonal metric with one weight per column (`weight` is on the device).
  const GptqCodes& fit(const GptqPlan& plan, const float* weight, const float* values, int64_t out, int64_t in);

 private:
  void begin(const GptqPlan& plan, int64_t out, int64_t in);
  void fit_scales(const float* weight, const float* values);
  void error_feedback(SecondOrder& order, const float* values);
  void descend(SecondOrder& order, const float* values, int passes);
  void refresh(SecondOrder& order, const float* values);
  double dot(const float* a, const float* b);
  void collect();  // from the device

  Stream stream_;
  Blas blas_;
  GptqShape shape_;
  GptqRules rules_;
  DeviceBuffer codes_, scale_, offset_, row_scale_, work_, gradient_, change_, sums_;
  GptqCodes found_;
};

}  // namespace fidelio::cuda
