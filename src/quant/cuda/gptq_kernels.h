// The launchers behind gptq.h: pointers into device memory, matrices row-major.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

constexpr int kGptqBlock = 128;  // columns between two products
constexpr int kShrinks = 24;     // ranges tried (quant/fit.cc)

struct GptqShape {
  int64_t out = 0, in = 0, groups = 0;
  int group = 0;  // divides kGptqBlock
};

enum class ScaleForm : uint8_t { half, byte, signed_byte };

// Levels and scales of a format, as quant/strip.h has them: value = scale level + offset.
struct GptqRules {
  bool grid = false, symmetric = true, search = true;
  ScaleForm form = ScaleForm::half;
  float lowest = 0, highest = 0;
  float shrink[kShrinks] = {};
  int levels = 0;         // of a grid
  float book[64] = {};    // ascending
  float middle[64] = {};  // between neighbours
};

// What a matrix has become so far.
struct GptqState {
  uint8_t* codes = nullptr;                   // (out, in)
  float *scale = nullptr, *offset = nullptr;  // (out, groups)
  float* row_scale = nullptr;                 // (out)
};

// Scale and offset of every group by the range search; row scales too where the format has them.
void fit_groups(Stream stream, const GptqShape& shape, const GptqRules& rules, const float* weight, const float* values,
                const GptqState& state);

// values of columns with a zero on the Hessian's diagonal = 0.
void clear_dead(Stream stream, const GptqShape& shape, const float* diagonal, float* values);
// to (out, in), step by step = values of column order[step].
void order_columns(Stream stream, const GptqShape& shape, const int32_t* order, const float* values, float* to);
// Rounds steps [begin, begin + width) of `work`, takes each one's error out of the block's later ones; `error` (out,
// kGptqBlock) keeps them, zeros beyond the width.
void feed_back_block(Stream stream, const GptqShape& shape, const GptqRules& rules, int64_t begin, const float* upper,
                     const int32_t* order, const float* work, const GptqState& state, float* error);

// rest = values - decoded.
void subtract_decoded(Stream stream, const GptqShape& shape, const GptqRules& rules, const float* values,
                      const GptqState& state, float* rest);
// The best code of each column of a block in turn; `change` (out, kGptqBlock) of its values. The gradient is read.
void descend_block(Stream stream, const GptqShape& shape, const GptqRules& rules, int64_t begin, const float* hessian,
                   const float* gradient, const GptqState& state, float* change);
// The best scale of each group of a block in turn, likewise.
void rescale_block(Stream stream, const GptqShape& shape, const GptqRules& rules, int64_t begin, const float* hessian,
                   const float* gradient, const GptqState& state, float* change);

// sums (out) = of a b over each row.
void row_dots(Stream stream, const GptqShape& shape, const float* a, const float* b, double* sums);

}  // namespace fidelio::cuda
