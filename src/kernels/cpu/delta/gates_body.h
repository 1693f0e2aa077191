// This file has the gates of gated delta nets and their convolution. It is compiled once for each instruction set.
#pragma once
#include "kernels/cpu/delta/delta_args.h"
#include "kernels/cpu/ops_body.h"

namespace fidelio::cpu {
namespace {

inline V sigmoid(V x) { return 1.0f / (1.0f + exp(-x)); }
inline V sigmoid_times(V gate, V up) { return sigmoid(gate) * up; }
inline void sigmoid_gated(const float* gate, const float* up, float* y, int64_t n) {
  gate_times<sigmoid_times>(gate, up, y, n);
}

// Adds a row times the sigmoid of one gate.
inline void add_gated(float gate, const float* y, float* x, int64_t n) {
  const V share = sigmoid(splat(gate));
  int64_t i = 0;
  for (; i + W <= n; i += W) store(x + i, fma(share, load(y + i), load(x + i)));
  if (i == n) return;
  float tail[2][W] = {};
  for (int64_t j = i; j < n; ++j) tail[0][j - i] = y[j], tail[1][j - i] = x[j];
  store(tail[0], fma(share, load(tail[0]), load(tail[1])));
  for (int64_t j = i; j < n; ++j) x[j] = tail[0][j - i];
}

// Returns log(1 + t) for t in [0, 1], to 3 ulp: it is 2 artanh(s) for s = t / (2 + t), whose series in s^2 <= 1/9 ends
// when its terms are below 2^-30 of the first.
inline V log_one_plus(V t) {
  const V s = t / (2.0f + t), square = s * s;
  V sum = splat(1.0f / 17);
  FIDELIO_UNROLL for (int odd = 15; odd > 0; odd -= 2) sum = fma(sum, square, splat(1.0f / static_cast<float>(odd)));
  return 2.0f * s * sum;
}

// Returns log(1 + e^x), which is near x for a large x and near e^x for a small one.
inline V softplus(V x) {
  const V zero{}, size = x < zero ? -x : x;
  return max(x, zero) + log_one_plus(exp(-size));
}

// Convolves row t of the arguments for the vector of channels from c on, or for channel c alone.
template <bool kOne>
inline V convolved(const ConvolveArgs& a, int64_t t, int64_t c) {
  const auto loaded = [](const float* p) { return kOne ? splat(*p) : load(p); };
  V sum{};
  for (int64_t i = 0; i < a.kernel; ++i) {
    const int64_t row = t - (a.kernel - 1) + i;  // the input's, counted from the first row
    if (row < 0 && !a.before) continue;
    const float* in = row < 0 ? a.before + (row + a.kernel - 1) * a.channels : a.x + row * a.channels;
    sum = fma(loaded(a.weight + i * a.channels + c), loaded(in + c), sum);
  }
  return silu_times(sum, splat(1));
}

inline void convolve(const ConvolveArgs& a) {
  for (int64_t t = 0; t < a.rows; ++t) {
    float* y = a.y + t * a.channels;
    int64_t c = a.first;
    for (; c + W <= a.last; c += W) store(y + c, convolved<false>(a, t, c));
    for (; c < a.last; ++c) y[c] = convolved<true>(a, t, c)[0];
  }
}

}  // namespace
}  // namespace fidelio::cpu
