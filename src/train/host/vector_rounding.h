// This file computes one vector of a vector code (train/vectors.h) from its latents to its values, as functions that
// can be compiled for a GPU too.
#pragma once
#include "train/host/rounding.h"
#include "train/vectors.h"

namespace fidelio::train {

template <typename Real>
constexpr Real stored_f16(Real x) {
  return static_cast<Real>(round_f16(static_cast<float>(x)));
}

// Chooses the code of vector v of row r anew, unless there are no latents, and writes its values.
template <typename Real>
constexpr void decode_vector(const VectorSizes& s, const VectorView<Real>& view, int64_t r, int64_t v, Real* values) {
  const int64_t first = v * kVector, count = s.in - first < kVector ? s.in - first : int64_t{kVector};
  const auto block = static_cast<int64_t>(view.book[r]);
  const Real* book = view.codebook + block * s.entries * kVector;
  Real& code = view.code[r * s.vectors + v];
  auto chosen = static_cast<int>(code);
  if (view.latent != nullptr) {
    const Real* near = view.neighbours + (block * s.entries + chosen % s.entries) * s.neighbours;
    chosen = nearest_vector(view.latent + r * s.in + first, count, book, near, s.neighbours, s.entries, s.signs);
    code = static_cast<Real>(chosen);
  }
  const Real row = stored_f16(view.row[r]);
  for (int64_t j = 0; j < count; ++j) {
    const Real level = book[chosen % s.entries * kVector + j];
    values[r * s.in + first + j] = row * stored_f16(view.column[first + j]) *
                                   (is_negated(s.signs, chosen / static_cast<int>(s.entries), j) ? -level : level);
  }
}

// These return a correction as stored: its scale, and the signed bytes that the scale multiplies.
template <typename Real>
constexpr float correction_scale(const Real* values) {
  float largest = 0;
  for (int j = 0; j < kVector; ++j) {
    const auto x = static_cast<float>(values[j] < 0 ? -values[j] : values[j]);
    largest = x > largest ? x : largest;
  }
  return round_f16(largest / 127);
}
constexpr float correction_level(float value, float scale) {
  return scale > 0 ? nearest(within(value / scale, -127, 127)) : 0;
}

template <typename Real>
constexpr void add_correction(const VectorSizes& s, const VectorView<Real>& view, int64_t i, Real* values) {
  const Real* wanted = view.correction + i * kVector;
  const float scale = correction_scale(wanted);
  const auto row = static_cast<int64_t>(view.place[2 * i]),
             first = static_cast<int64_t>(view.place[2 * i + 1]) * kVector;
  for (int64_t j = 0; j < kVector && first + j < s.in; ++j)
    values[row * s.in + first + j] += static_cast<Real>(scale * correction_level(static_cast<float>(wanted[j]), scale));
}

}  // namespace fidelio::train
