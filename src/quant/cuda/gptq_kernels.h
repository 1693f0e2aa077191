// This file declares the functions that launch the kernels behind gptq.h. Pointers are into device memory, and
// matrices are row-major.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

constexpr int kGptqBlock = 128;  // columns between two products
constexpr int kShrinks = 24;     // the number of ranges tried (quant/fit.cc)

struct GptqShape {
  int64_t out = 0, in = 0, groups = 0;
  int group = 0;  // the size of a group, which divides kGptqBlock
};

enum class ScaleForm : uint8_t { half, byte, signed_byte };

// GptqRules describes the levels and scales of a format as quant/strip.h does: value = scale level + offset.
struct GptqRules {
  bool grid = false, symmetric = true, search = true;
  ScaleForm form = ScaleForm::half;
  float lowest = 0, highest = 0;
  float shrink[kShrinks] = {};
  int levels = 0;         // number of levels of a grid
  float book[64] = {};    // the levels in ascending order
  float middle[64] = {};  // the midpoints between neighbours
};

// GptqState holds the codes and scales chosen so far.
struct GptqState {
  uint8_t* codes = nullptr;                   // (out, in)
  float *scale = nullptr, *offset = nullptr;  // (out, groups)
  float* row_scale = nullptr;                 // (out)
};

// Fits the scale and offset of every group by the range search, and the row scales if the format has them.
void fit_groups(Stream stream, const GptqShape& shape, const GptqRules& rules, const float* weight, const float* values,
                const GptqState& state);

// Sets the columns of `values` to 0 that have a zero on the Hessian's diagonal.
void clear_dead(Stream stream, const GptqShape& shape, const float* diagonal, float* values);
// Writes to `to` (out, in), step by step, column order[step] of `values`.
void order_columns(Stream stream, const GptqShape& shape, const int32_t* order, const float* values, float* to);
// Rounds steps [begin, begin + width) of `work` and takes each one's error out of the later columns of the block.
// `error` (out, kGptqBlock) receives the errors, with zeros beyond the width.
void feed_back_block(Stream stream, const GptqShape& shape, const GptqRules& rules, int64_t begin, const float* upper,
                     const int32_t* order, const float* work, const GptqState& state, float* error);

// Computes rest = values - decoded.
void subtract_decoded(Stream stream, const GptqShape& shape, const GptqRules& rules, const float* values,
                      const GptqState& state, float* rest);
// Chooses the best code of each column of a block in turn. `change` (out, kGptqBlock) receives the changes of their
// values. The gradient is only read.
void descend_block(Stream stream, const GptqShape& shape, const GptqRules& rules, int64_t begin, const float* hessian,
                   const float* gradient, const GptqState& state, float* change);
// Chooses the best scale of each group of a block in turn, in the same way.
void rescale_block(Stream stream, const GptqShape& shape, const GptqRules& rules, int64_t begin, const float* hessian,
                   const float* gradient, const GptqState& state, float* change);

// Computes sums (out), the dot product of a and b over each row.
void row_dots(Stream stream, const GptqShape& shape, const float* a, const float* b, double* sums);

}  // namespace fidelio::cuda
