// This file has norms, gates, rotation and conversion. It is compiled once for each instruction set.
#pragma once
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/simd.h"

namespace fidelio::cpu {
namespace {

inline void to_bf16(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  // Subnormal inputs become zero here but not in the scalar rounding. The dot product flushes them anyway.
  for (; i + W <= n; i += W) {
    const __m256bh rounded = _mm512_cvtneps_pbh(load(x + i));
    __builtin_memcpy(y + i, &rounded, sizeof rounded);
  }
#endif
  for (; i < n; ++i) y[i] = round_to_bf16(x[i]);
}

// Normalises a row by the root of its mean square. The sum of squares has four vectors of partial sums over i mod 4
// W, so a chain has at most n / 64 terms (n / 16 in the portable build). The lanes are added in a fixed order. The
// division and the root are in double.
inline void norm(const float* x, const float* weight, float eps, float* y, int64_t n) {
  V sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W)
    for (int j = 0; j < 4; ++j) {
      const V v = load(x + i + j * W);
      sums[j] = fma(v, v, sums[j]);
    }
  double total = static_cast<double>(sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3])));
  for (; i < n; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const float factor =
      static_cast<float>(1 / __builtin_sqrt(total / static_cast<double>(n) + static_cast<double>(eps)));
  for (i = 0; i + W <= n; i += W) store(y + i, load(x + i) * factor * load(weight + i));
  for (; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

inline V silu_times(V gate, V up) { return gate / (1.0f + exp(-gate)) * up; }

// Returns gelu(gate) * up, with GELU by tanh: (1 + tanh t) / 2 = 1 / (1 + e^-2t), t = sqrt(2 / pi) (x + .044715 x^3).
inline V gelu_times(V gate, V up) {
  const V cube = gate * gate * gate, twice = 1.5957691216057308f * (gate + 0.044715f * cube);
  return gate / (1.0f + exp(-twice)) * up;
}

// Writes y = combine(gate, up), a vector at a time.
template <typename Combine>
inline void combine_rows(const float* gate, const float* up, float* y, int64_t n, const Combine& combine) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(y + i, combine(load(gate + i), load(up + i)));
  if (i == n) return;
  float tail[2][W] = {};
  for (int64_t j = i; j < n; ++j) tail[0][j - i] = gate[j], tail[1][j - i] = up[j];
  store(tail[0], combine(load(tail[0]), load(tail[1])));
  for (int64_t j = i; j < n; ++j) y[j] = tail[0][j - i];
}
template <V (*kGate)(V, V)>
inline void gate_times(const float* gate, const float* up, float* y, int64_t n) {
  combine_rows(gate, up, y, n, [](V g, V u) { return kGate(g, u); });
}
inline void clamped(const float* gate, const float* up, float alpha, float limit, float* y, int64_t n) {
  const V highest = splat(limit), lowest = splat(-limit), slope = splat(alpha);
  combine_rows(gate, up, y, n, [&](V g, V u) {
    const V x = g > highest ? highest : g;
    const V held = u > highest ? highest : u < lowest ? lowest : u;
    return x / (1.0f + exp(-(slope * x))) * (held + 1.0f);
  });
}
inline void swiglu(const float* gate, const float* up, float* y, int64_t n) { gate_times<silu_times>(gate, up, y, n); }
inline void geglu(const float* gate, const float* up, float* y, int64_t n) { gate_times<gelu_times>(gate, up, y, n); }

// Returns tanh(x). Near zero it is the odd polynomial of degree 11 of the Cephes library, as the quotient of
// exponentials would lose the digits of x there.
inline V tanh_of(V x) {
  const V square = x * x, size = x < 0.0f ? -x : x, kept = exp(-2.0f * size), large = (1.0f - kept) / (1.0f + kept);
  const V series =
      (((-5.70498872745e-3f * square + 2.06390887954e-2f) * square - 5.37397155531e-2f) * square + 1.33314422036e-1f) *
          square -
      3.33332819422e-1f;
  const V near_or_far = size < 0.625f ? series * square * x + x : x < 0.0f ? -large : large;
  return x == x ? near_or_far : x;  // exp() does not keep NaN
}
inline void softcap(float* x, float cap, int64_t n) {
  const float share = 1 / cap;
  int64_t i = 0;
  for (; i + W <= n; i += W) store(x + i, cap * tanh_of(load(x + i) * share));
  if (i == n) return;
  float tail[W] = {};
  for (int64_t j = i; j < n; ++j) tail[j - i] = x[j];
  store(tail, cap * tanh_of(load(tail) * share));
  for (int64_t j = i; j < n; ++j) x[j] = tail[j - i];
}

// Multiplies a row by a Hadamard matrix: first sums and differences of elements `stride` apart, 2 stride apart and so
// on, then the dense factor, whose terms are added in order.
inline void turn(const TurnArgs& how, float* row, float* scratch) {
  const int64_t block = how.core * how.part;
  for (float* x = row; x < row + how.columns; x += block) {
    for (int64_t half = how.stride; half < how.part; half *= 2)
      for (int64_t first = 0; first < block; first += 2 * half)
        for (int64_t i = first; i < first + half; ++i) {
          const float a = x[i], b = x[i + half];
          x[i] = a + b;
          x[i + half] = a - b;
        }
    if (how.core == 1) {
      for (int64_t i = 0; i < block; ++i) x[i] *= how.scale;
      continue;
    }
    for (int64_t i = 0; i < how.core; ++i) {
      const float* signs = how.signs + i * how.core;
      float* sums = scratch + i * how.part;
      for (int64_t p = 0; p < how.part; ++p) sums[p] = 0;
      for (int64_t j = 0; j < how.core; ++j)
        for (int64_t p = 0; p < how.part; ++p) sums[p] += signs[j] * x[j * how.part + p];
    }
    for (int64_t i = 0; i < block; ++i) x[i] = scratch[i] * how.scale;
  }
}

inline void rotate(float* x, const float* cosine, const float* sine, int64_t columns) {
  const int64_t half = columns / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace
}  // namespace fidelio::cpu
