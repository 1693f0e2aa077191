// How the quantisers see a matrix: in strips of 64 rows, transposed, so that the rows are the lanes of plain loops.
//
//          row 0  row 1 ... row 63
//   col 0 [  .      .         .   ]     Everything the algorithms do to a weight (round, compensate, compare) is the same
//   col 1 [  .      .         .   ]     for all rows; only scale and offset differ. A loop over 64 floats vectorises
//    ...                                without intrinsics or reductions, and gives the same bits on every machine.
//
// A strip is also the unit of parallel work: rows never touch each other, so thread counts cannot change a result.
// Inside, every format is one thing: value = scale * level + offset, level from a small ascending table (Levels).
#pragma once
#include <array>
#include <span>
#include <vector>

#include "formats/linear_weight.h"

namespace fidelio {

inline constexpr int64_t kLanes = 64;
using Lanes = std::array<float, kLanes>;

// The values a code can take before scale and offset: 0 .. 2^b - 1 for integers, the codebook (-127 .. 127) for grids,
// E2M1 and E4M3 themselves for floats.
class Levels {
 public:
  explicit Levels(const FormatSpec& spec);                           // not for grids
  Levels(const FormatSpec& spec, std::span<const int8_t> codebook);  // ascending
  float lowest() const { return lowest_; }
  float highest() const { return highest_; }
  // target (kLanes) -> the nearest level and the value it stands for, under the scale and offset of its group. The same
  // bits with any instruction set: every lane is a quotient, a rounding, a product and a sum.
  void quantise(const float* target, const float* scale, const float* offset, float* level, float* value) const;
  uint8_t code(float level) const;  // of an exact level
  float level(uint8_t code) const;

 private:
  void round(float* y) const;  // (kLanes) in place, each to the nearest level
  FormatSpec spec_;
  float lowest_ = 0, highest_ = 0;
  std::vector<float> book_, middle_, step_;  // grids: levels, midpoints between neighbours, distances
};

// One strip in work. Columns are in storage order.
struct Strip {
  int64_t first = 0, rows = 0, in = 0, groups = 0, group = 0;
  std::vector<float> weight;         // (in, lanes): the original values; rows beyond `rows` are zero
  std::vector<float> level;          // (in, lanes): the choice so far
  std::vector<float> scale, offset;  // (groups, lanes)
  Lanes row_scale{};                 // formats with a second-level scale: what `scale` are multiples of

  Strip(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in, int64_t strip);
  Strip(const FormatSpec& spec, int64_t out, int64_t in, int64_t strip);  // without weights: of choices made elsewhere
  const float* scales(int64_t column) const { return scale.data() + column / group * kLanes; }
  const float* offsets(int64_t column) const { return offset.data() + column / group * kLanes; }
};
inline int64_t strips(int64_t out) { return (out + kLanes - 1) / kLanes; }

// Chooses scale and offset of every group (and the row scales) of a strip by a search over shrunken ranges that
// minimises sum_j importance_j (w_j - q_j)^2, with scales as they will be stored. Without `search` the range is the
// groups' own.
void fit_scales(const FormatSpec& spec, const Levels& levels, std::span<const float> importance, bool search,
                Strip& strip);

// The nearest stored scale to a wanted one (row scale fixed): FP16, u8, i8 or E4M3 multiples of row_scale.
float stored_scale(const FormatSpec& spec, float wanted, float row_scale);
float stored_offset(const FormatSpec& spec, float wanted, float row_scale);  // fp4 with offset

// Writes a finished strip's codes, scales and zero points into its rows of `w` (allocated in this format).
void emit(const Strip& strip, const Levels& levels, LinearWeight& w);

}  // namespace fidelio
