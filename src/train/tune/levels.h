// Between a LinearWeight and the latents of codes.h, on the host: what formats store, as ascending levels and values of
// groups, and back. Exact both ways: latents that nobody moved give the bytes they came from (a negative zero of FP4 or
// FP8 comes back as zero).
#pragma once
#include <optional>
#include <vector>

#include "formats/linear_weight.h"
#include "train/codes.h"

namespace fidelio::train {

// The values of a format's codes in ascending order, and the code of each.
struct LevelTable {
  std::vector<float> level;
  std::vector<uint8_t> code;
  std::vector<int> index;  // (256) of a code
};
LevelTable level_table(const LinearWeight& weight);

ScaleRule scale_rule(const FormatSpec& spec);

// Everything of a weight but its codes, as floats; empty where the format has none.
struct GroupValues {
  std::vector<float> group_scale;   // (out, groups) multiples of row_scale, or the FP16 scales
  std::vector<float> row_scale;     // (out)
  std::vector<float> zero;          // (out, groups)
  std::vector<float> group_offset;  // (out, groups)
};
GroupValues group_values(const LinearWeight& weight);

// Latents (out, in) that stand for the weight's codes: each where `source` (out, in) would put it within its cell, at
// most `most` of a cell (below .5) from the middle. Empty source: in the middle.
std::vector<float> start_positions(const LinearWeight& weight, const LevelTable& table, const GroupValues& groups,
                                   std::span<const float> source, float most);

// The weight that latents stand for. `table.level` of a grid is its codebook as it is now.
LinearWeight weight_of(const FormatSpec& spec, int64_t out, int64_t in, const LevelTable& table,
                       std::span<const float> positions, const GroupValues& groups);

// Codes of two weights of one format that are not the same; 0 of dense ones and of vectors, which are not counted.
int64_t different_codes(const LinearWeight& a, const LinearWeight& b);

}  // namespace fidelio::train
