// A vector's code out of the words of vectors.h.
#pragma once
#include "kernels/cuda/linear/vectors/vectors.h"

namespace fidelio::cuda {

struct VectorCodeOf {
  int index, signs;  // signs: bit j is set where entry j is negated
};

// Bits of 1, 4 or 8 signs -> a bit for each of 8 entries.
template <int kSigns>
__device__ __forceinline__ int spread(int bits) {
  if constexpr (kSigns == 8) return bits;
  if constexpr (kSigns == 1) return bits ? 255 : 0;
  const int pairs = (bits & 1) | (bits & 2) << 1 | (bits & 4) << 2 | (bits & 8) << 3;
  return pairs * 3;
}

// Vector `which` (0 to 3) of a lane's words; words that the format has not are zero.
template <int kSigns>
__device__ __forceinline__ VectorCodeOf code_of(uint32_t index, uint32_t high, uint32_t sign, int which) {
  const int low = static_cast<int>(index >> (8 * which) & 255), nibble = static_cast<int>(high >> (4 * which) & 15);
  if constexpr (kSigns == 1) return {low | (nibble & 7) << 8, spread<1>(nibble >> 3)};
  if constexpr (kSigns == 4) return {low | nibble << 8, spread<4>(static_cast<int>(sign >> (4 * which) & 15))};
  return {low | nibble << 8, static_cast<int>(sign >> (8 * which) & 255)};
}

// Entry j of a codebook's entry (two words of signed bytes) with its sign.
__device__ __forceinline__ float entry_of(uint2 levels, int signs, int j) {
  const uint32_t word = j < 4 ? levels.x : levels.y;
  const auto level = static_cast<float>(static_cast<int8_t>(word >> (8 * (j % 4)) & 255));
  return (signs >> j & 1) != 0 ? -level : level;
}

__device__ inline int64_t vector_block(const VectorWeight& w, int64_t row) {
  int64_t block = 0;
  while (block + 1 < w.blocks && w.first_row[block + 1] <= row) ++block;
  return block;
}

// One value, as decode_row() gives it.
__device__ inline float vector_value(const VectorWeight& w, int64_t row, int64_t column) {
  const int64_t v = column / 8, at = (row * w.groups + v / kVectorGroup) * kVectorLanes + v % kVectorLanes;
  const int which = static_cast<int>(v % kVectorGroup / kVectorLanes), j = static_cast<int>(column % 8);
  const uint32_t index = w.index[at], high = w.high ? w.high[at] : 0u;
  const VectorCodeOf code = w.signs == 1   ? code_of<1>(index, high, 0, which)
                            : w.signs == 4 ? code_of<4>(index, high, w.sign4[at], which)
                                           : code_of<8>(index, high, w.sign8[at], which);
  const int64_t entry = vector_block(w, row) * w.entries + code.index;
  const auto levels = reinterpret_cast<const uint2*>(w.codebook)[entry];
  float value = __fmul_rn(__fmul_rn(w.row[row], w.column[column]), entry_of(levels, code.signs, j));
  if (!w.begin) return value;
  int low = w.begin[row], end = w.begin[row + 1];
  while (low < end) {
    const int middle = (low + end) / 2;
    if (w.place[middle] < v)
      low = middle + 1;
    else
      end = middle;
  }
  if (low < w.begin[row + 1] && w.place[low] == v)
    value = __fadd_rn(value, __fmul_rn(w.scale[low], static_cast<float>(w.value[low * 8 + j])));
  return value;
}

}  // namespace fidelio::cuda
