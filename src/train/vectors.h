// This file describes vector codes (formats/vector_code.h) so that they have gradients: w = row column
// (+-codebook[index]) + correction.
//
// A vector's latent is a point in the codebook's own terms, levels. Products use the entry and signs nearest to it,
// and the backward pass goes straight through (van den Oord et al. 2017). The nearest entry is searched among the
// neighbours of the present one; in a small codebook these are all that surround it. Rows, columns and corrections
// are rounded as stored and the codebook to signed bytes, straight through too.
#pragma once
#include <cstdint>

namespace fidelio::train {

struct VectorSizes {
  int64_t out = 0, in = 0, vectors = 0;  // vectors of a row: ceil(in / 8)
  int64_t entries = 0, neighbours = 0;   // entries of a codebook, and neighbours of an entry, with itself first
  int64_t books = 0;
  int64_t corrections = 0;
  int signs = 0;  // 1, 4, 8
};

// Everything is an array of Real, even indices, since a device has no other arrays. Whole numbers must be below 2^24.
template <typename Real>
struct VectorView {
  const Real* latent;      // (out, in); if null, codes stay as they are
  const Real* codebook;    // (books, entries, 8): levels, already rounded
  const Real* neighbours;  // (books, entries, neighbours): indices
  const Real* book;        // (out): the codebook of each row
  const Real* row;         // (out): masters; products use them as FP16
  const Real* column;      // (in)
  const Real* correction;  // (corrections, 8): masters; products use them as FP16 times signed bytes
  const Real* place;       // (corrections, 2): row and vector
  Real* code;              // (out, vectors): index + entries * bits of the signs; decode() chooses it anew
};

template <typename Real>
struct VectorGradient {
  Real* latent;      // on entry dL/dvalue (out, in); replaced by the gradient of the latents
  Real* row;         // (out), written
  Real* column;      // (in), written
  Real* codebook;    // (books, entries, 8), added to; null skips it
  Real* correction;  // (corrections, 8), written; null without corrections
};

constexpr int kVector = 8;

// Returns true if bit j of the sign bits negates entry j of eight.
constexpr bool is_negated(int signs, int bits, int64_t j) { return ((bits >> (j * signs / kVector)) & 1) != 0; }

// Returns which of the neighbours of the present entry is nearest to x, and with which signs. Among equals it is the
// first. Only `count` of x's eight entries exist, and all count equally.
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
