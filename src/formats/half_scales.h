// This header tells which weights FP16 scales can hold. Weights may be small or large and the function the same, as
// where one matrix is divided by 2^20 and the next multiplied by it; a scale of FP16 then becomes 0, infinite or one of
// a few subnormal numbers, and the row's codes mean something else. Formats with FP32 scales (8-bit scales, grids, fp4,
// fp8) hold every weight.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "formats/format_spec.h"

namespace fidelio {

// Integers without 8-bit scales, vector codes, and weights that are FP16 numbers themselves.
bool has_half_scales(const FormatSpec& spec);
// The nearest format whose scales have the range of FP32: int4g64zs8 for int4g64z.
FormatSpec with_wide_scales(const FormatSpec& spec);

// Counts what is lost of a matrix, row by row, as the next layer may multiply any row by what makes up for it.
struct HalfLoss {
  int64_t rows = 0, lost = 0;          // that are not zero; of them, where more than 1% of the energy has wrong scales
  double energy = 0, lost_energy = 0;  // sums of squares
  bool overflows = false;              // a scale is wanted beyond the largest FP16 number
  float worst = 0;                     // a scale that is wanted and not held, the farthest away

  // Few rows that are nearly zero are harmless in every model: those of tokens that no text has, of neurons that died.
  bool is_harmful() const { return overflows || 8 * lost > rows || lost_energy > energy / 100; }
  void add(const HalfLoss& other);
};

// Returns whether FP16 holds a scale: below 2^-21 it may round by more than a sixteenth.
bool is_half_scale(float wanted);

class HalfTally {
 public:
  void group(float wanted, double energy, bool held);
  void end_row();
  const HalfLoss& loss() const { return loss_; }

 private:
  HalfLoss loss_;
  double row_energy_ = 0, row_lost_ = 0;
};

// Returns the loss of one row of a matrix that is stored in this format; formats without FP16 scales lose nothing.
HalfLoss half_loss(const FormatSpec& spec, std::span<const float> row);

// "layers.0.up: its weights want scales of 1.2e-09, ...", with what to give in place of `format`; for an Error or a warning.
std::string about_half_loss(const std::string& linear, const FormatSpec& format, const HalfLoss& loss);

}  // namespace fidelio
