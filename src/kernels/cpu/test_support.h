// This file has helpers that the tests of kernels/cpu share.
#pragma once
#include <cmath>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "kernels/cpu/cpu.h"

namespace fidelio::cpu {

constexpr double kUnit = 0x1p-24;  // the unit roundoff of FP32

inline std::vector<float> normals(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}
inline std::vector<double> widened(std::span<const float> x) { return {x.begin(), x.end()}; }

// Returns a random (out, in) weight of a dense dtype, with or without a bias.
inline LinearWeight random_weight(DType dtype, int64_t out, int64_t in, bool bias, uint64_t seed) {
  OwnedTensor w = OwnedTensor::allocate(dtype, {out, in});
  convert_from_float(normals(out * in, seed), w.view);
  OwnedTensor b;
  if (bias) {
    b = OwnedTensor::allocate(DType::f32, {out});
    convert_from_float(normals(out, seed + 1), b.view);
  }
  return make_dense(std::move(w), std::move(b));
}

// Returns a batch of sequences of `lengths` rows that start at positions `begins`. Pages are handed out in `order`,
// or one after the other if it is empty.
inline Batch make_batch(const std::vector<int>& lengths, const std::vector<int>& begins,
                        const std::vector<int>& order = {}) {
  Batch batch;
  int next = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    std::vector<int32_t> ids(static_cast<size_t>(lengths[s])), pages;
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(batch.rows()));
    for (int p = 0; p * kPageTokens < begins[s] + lengths[s]; ++p, ++next)
      pages.push_back(order.empty() ? next : order[static_cast<size_t>(next)]);
    batch.append(ids, begins[s], pages, 0, RowKind::output);
  }
  return batch;
}

inline Batch rows_batch(int64_t rows) { return make_batch({static_cast<int>(rows)}, {0}); }

inline AttentionShape tiny_shape(int heads = 4, int kv_heads = 2, int e = 8, int layers = 1) {
  AttentionShape s;
  s.layers.resize(static_cast<size_t>(layers));
  s.rotations.resize(1);
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = e;
  s.norm_eps = 1e-6f;
  for (int i = 0; i < e / 2; ++i)
    s.rotations[0].inverse_frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / e)));
  return s;
}
inline void set_window(AttentionShape& shape, int window) {
  for (LayerAttention& layer : shape.layers) layer.window = window;
}

}  // namespace fidelio::cpu
