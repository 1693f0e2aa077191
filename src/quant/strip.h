// The quantisers see a matrix in strips of 64 rows, transposed, so that the rows are the lanes of plain loops. This
// file defines a strip.
//
//          row 0  row 1 ... row 63
//   col 0 [  .      .         .   ]     Everything the algorithms do to a weight (round, compensate, compare) is alike
//   col 1 [  .      .         .   ]     for all rows; only scale and offset differ. A loop over 64 floats vectorises
//    ...                                without intrinsics or reductions, and gives the same bits on every machine.
//
// A strip is also the unit of parallel work. Rows never affect each other, so the number of threads cannot change a
// result. Inside a strip every format has one form: value = scale * level + offset, with a level from a small
// ascending table (Levels).
#pragma once
#include <array>
#include <span>
#include <vector>

#include "formats/linear_weight.h"

namespace fidelio {

inline constexpr int64_t kLanes = 64;
using Lanes = std::array<float, kLanes>;

// Levels holds the values that a code can take before scale and offset: 0 .. 2^b - 1 for integers, the codebook (-127
// .. 127) for grids, and E2M1 and E4M3 themselves for floats.
class Levels {
 public:
  explicit Levels(const FormatSpec& spec);                           // for all formats but grids
  Levels(const FormatSpec& spec, std::span<const int8_t> codebook);  // for grids, whose codebook must be ascending
  float lowest() const { return lowest_; }
  float highest() const { return highest_; }
  // Rounds target (kLanes) to the nearest level and the value that it stands for, with the scale and offset of its
  // group. The bits are the same with any instruction set, because every lane takes a quotient, a rounding, a product
  // and a sum.
  void quantise(const float* target, const float* scale, const float* offset, float* level, float* value) const;
  uint8_t code(float level) const;  // returns the code of a level, which must be exact
  float level(uint8_t code) const;

 private:
  void round(float* y) const;  // rounds (kLanes) in place, each to the nearest level
  FormatSpec spec_;
  float lowest_ = 0, highest_ = 0;
  std::vector<float> book_, middle_, step_;  // for grids: levels, midpoints between neighbours, and distances
};

// A Strip is one strip in work. Its columns are in the order of storage.
struct Strip {
  int64_t first = 0, rows = 0, in = 0, groups = 0, group = 0;
  std::vector<float> weight;         // (in, lanes): the original values, with zeros in rows beyond `rows`
  std::vector<float> level;          // (in, lanes): the levels chosen so far
  std::vector<float> scale, offset;  // (groups, lanes)
  Lanes row_scale{};                 // for formats with a second level of scales: `scale` are multiples of it

  Strip(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in, int64_t strip);
  Strip(const FormatSpec& spec, int64_t out, int64_t in, int64_t strip);  // without weights, for choices made elsewhere
  const float* scales(int64_t column) const { return scale.data() + column / group * kLanes; }
  const float* offsets(int64_t column) const { return offset.data() + column / group * kLanes; }
};
inline int64_t strips(int64_t out) { return (out + kLanes - 1) / kLanes; }

// Chooses scale and offset of every group of a strip, and the row scales. It searches over shrunken ranges for the
// least sum_j importance_j (w_j - q_j)^2, with scales as they will be stored. Without `search` each group's range is
// its own.
void fit_scales(const FormatSpec& spec, const Levels& levels, std::span<const float> importance, bool search,
                Strip& strip);

// Returns the stored scale nearest to a wanted one, with the row scale fixed: an FP16 number, a power of two, or a u8,
// i8 or E4M3 multiple of row_scale.
float stored_scale(const FormatSpec& spec, float wanted, float row_scale);
float stored_offset(const FormatSpec& spec, float wanted, float row_scale);  // for fp4 with an offset

// Writes a finished strip's codes, scales and zero points into its rows of `w`, which is allocated in this format.
void emit(const Strip& strip, const Levels& levels, LinearWeight& w);

}  // namespace fidelio
