// This file makes the inputs and weights with which tests compare a GPU's workbench to the host's.
#pragma once
#include <algorithm>
#include <vector>

#include "core/rng.h"
#include "formats/linear_weight.h"

namespace fidelio {

inline constexpr int64_t kTokens = 900;

// Returns correlated integers. Sums of their products stay below 2^24, so that every order of summing gives the same
// Hessian.
inline std::vector<float> activations(int64_t in, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(kTokens * in));
  for (int64_t t = 0; t < kTokens; ++t) {
    int common[8];
    for (int& c : common) c = static_cast<int>(rng.below(13)) - 6;
    for (int64_t c = 0; c < in; ++c)
      x[static_cast<size_t>(t * in + c)] =
          static_cast<float>((common[c % 8] + static_cast<int>(rng.below(9)) - 4) * (c % 7 == 0 ? 3 : 1));
  }
  return x;
}

// Returns normal values, of which one in fifty is four times as wide.
inline std::vector<float> weights(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> w(static_cast<size_t>(n));
  for (float& v : w) v = static_cast<float>(rng.normal() * (rng.below(50) == 0 ? 0.2 : 0.05));
  return w;
}

inline LinearWeight dense(const std::vector<float>& values, int64_t out, int64_t in) {
  OwnedTensor w = OwnedTensor::allocate(DType::f32, {out, in});
  std::copy(values.begin(), values.end(), w.as<float>().begin());
  return make_dense(std::move(w));
}

}  // namespace fidelio
