// This file tells which weights FP16 scales can hold. Weights may be small or large while the function stays the same,
// as where one matrix is divided by 2^20 and the next is multiplied by it. A scale of FP16 then becomes 0, infinite or
// one of a few subnormal numbers, and the codes of the row change their meaning. Formats with FP32 scales (8-bit
// scales, grids, fp4, fp8) hold every weight.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "formats/format_spec.h"

namespace fidelio {

// Tells whether the format has FP16 scales: integers without 8-bit scales, vector codes, and FP16 weights themselves.
bool has_half_scales(const FormatSpec& spec);
// Returns the nearest format whose scales have the range of FP32, for example int4g64zs8 for int4g64z.
FormatSpec with_wide_scales(const FormatSpec& spec);

// This counts the part of a matrix that FP16 scales lose. It counts row by row, as the next layer may multiply any row
// by a factor that makes up for its size.
struct HalfLoss {
  // `rows` counts the rows that are not zero. A row is `lost` where more than 1% of its energy has wrong scales.
  int64_t rows = 0, lost = 0;
  double energy = 0, lost_energy = 0;  // These are sums of squares.
  bool overflows = false;              // It is true if a wanted scale exceeds the largest FP16 number.
  float worst = 0;                     // This is the wanted scale that is farthest from what FP16 holds.

  // A few rows that are nearly zero are harmless in every model: those of tokens that no text contains, or of dead
  // neurons.
  bool is_harmful() const { return overflows || 8 * lost > rows || lost_energy > energy / 100; }
  void add(const HalfLoss& other);
};

// Tells whether FP16 holds this scale. Below 2^-21 it may round by more than a sixteenth.
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

// Returns the loss of one row of a matrix that is stored in this format. Formats without FP16 scales lose nothing.
HalfLoss half_loss(const FormatSpec& spec, std::span<const float> row);

// Returns "layers.0.up: its weights want scales of 1.2e-09, ..." with the format to use in place of `format`. It is the
// text of an Error or a warning.
std::string about_half_loss(const std::string& linear, const FormatSpec& format, const HalfLoss& loss);

}  // namespace fidelio
