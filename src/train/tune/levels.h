// This file converts between a LinearWeight and the latents of codes.h, on the host: from what formats store to
// ascending levels and values of groups, and back. It is exact both ways: latents that did not move give the bytes
// that they came from (but a negative zero of FP4 or FP8 comes back as zero).
#pragma once
#include <optional>
#include <vector>

#include "formats/linear_weight.h"
#include "train/codes.h"

namespace fidelio::train {

// A LevelTable holds the values of a format's codes in ascending order, and the code of each.
struct LevelTable {
  std::vector<float> level;
  std::vector<uint8_t> code;
  std::vector<int> index;  // (256): for each code, its index
};
LevelTable level_table(const LinearWeight& weight);

ScaleRule scale_rule(const FormatSpec& spec);

// GroupValues is everything of a weight but its codes, as floats. Parts that the format does not have are empty.
struct GroupValues {
  std::vector<float> group_scale;   // (out, groups): multiples of row_scale, or the FP16 scales
  std::vector<float> row_scale;     // (out)
  std::vector<float> zero;          // (out, groups)
  std::vector<float> group_offset;  // (out, groups)
};
GroupValues group_values(const LinearWeight& weight);

// Returns latents (out, in) that stand for the weight's codes. Each lies where `source` (out, in) would put it within
// its cell, at most `most` of a cell (below .5) from the middle. If `source` is empty, each lies in the middle.
std::vector<float> start_positions(const LinearWeight& weight, const LevelTable& table, const GroupValues& groups,
                                   std::span<const float> source, float most);

// Returns the weight that latents stand for. For a grid, `table.level` is its present codebook.
LinearWeight weight_of(const FormatSpec& spec, int64_t out, int64_t in, const LevelTable& table,
                       std::span<const float> positions, const GroupValues& groups);

// Returns the number of codes in which two weights of one format differ. It is 0 for dense weights and for vectors,
// which are not counted.
int64_t different_codes(const LinearWeight& a, const LinearWeight& b);

}  // namespace fidelio::train
