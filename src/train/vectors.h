// Vector codes (formats/vector_code.h) as something with gradients: w = row column (+-codebook[index]) + correction.
//
// A vector's latent is a point in the codebook's own terms, levels; what is multiplied is the entry and signs nearest to
// it, straight-through (van den Oord et al. 2017), looked for among the neighbours of the entry that it has now, which
// is all of a small codebook's surroundings. Rows, columns and corrections are rounded as stored, the codebook to signed
// bytes, straight-through too.
#pragma once
#include <cstdint>

namespace fidelio::train {

struct VectorSizes {
  int64_t out = 0, in = 0, vectors = 0;  // ceil(in / 8) of a row
  int64_t entries = 0, neighbours = 0;   // of a codebook; of an entry, itself the first
  int64_t books = 0;
  int64_t corrections = 0;
  int signs = 0;  // 1, 4, 8
};

// Everything an array of Real, indices too: the device has no others. Whole numbers below 2^24.
template <typename Real>
struct VectorView {
  const Real* latent;      // (out, in); null: codes stay
  const Real* codebook;    // (books, entries, 8) levels, rounded already
  const Real* neighbours;  // (books, entries, neighbours) indices
  const Real* book;        // (out) of a row
  const Real* row;         // (out) masters; multiplied as FP16
  const Real* column;      // (in)
  const Real* correction;  // (corrections, 8) masters; multiplied as FP16 times signed bytes
  const Real* place;       // (corrections, 2): row and vector
  Real* code;              // (out, vectors): index + entries * signs, what decode chooses anew
};

template <typename Real>
struct VectorGradient {
  Real* latent;      // holds dL/dvalue (out, in), becomes that of the latents
  Real* row;         // (out) written
  Real* column;      // (in) written
  Real* codebook;    // (books, entries, 8) added to; null: not wanted
  Real* correction;  // (corrections, 8) written; null without any
};

constexpr int kVector = 8;

// +-: whether bit j of `signs` sign bits negates entry j of eight.
constexpr bool is_negated(int signs, int bits, int64_t j) { return ((bits >> (j * signs / kVector)) & 1) != 0; }

// Which of the neighbours of `now` is nearest to x (count of its 8 entries that there are), and with which signs; the
// first of several. x counts equally in all entries.
template <typename Real>
constexpr int nearest_vector(const Real* x, int64_t count, const Real* book, const Real* neighbours, int64_t many,
                             int64_t entries, int signs) {
  Real best = 0;
  int code = -1;
  const int64_t span = kVector / signs;
  for (int64_t i = 0; i < many; ++i) {
    const auto index = static_cast<int64_t>(neighbours[i]);
    const Real* b = book + index * kVector;
    Real score = 0;
    int bits = 0;
    for (int64_t g = 0; g < signs; ++g) {
      Real product = 0, norm = 0;
      for (int64_t j = g * span; j < (g + 1) * span && j < count; ++j) product += x[j] * b[j], norm += b[j] * b[j];
      if (product < 0) bits |= 1 << g;
      score += norm - 2 * (product < 0 ? -product : product);
    }
    if (code >= 0 && !(score < best)) continue;
    best = score;
    code = static_cast<int>(index + entries * bits);
  }
  return code;
}

}  // namespace fidelio::train
