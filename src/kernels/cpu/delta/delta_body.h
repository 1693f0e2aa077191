// This file computes the gated delta rule for rows of one sequence and one head, row by row. It is compiled once for
// each instruction set; delta_chunk_body.h has the other form.
//
// A state S is (key_dim, value_dim), and a row touches its columns independently of each other:
//
//   m = kept k S[:, j],  change = written (v[j] - m),  S[:, j] = kept S[:, j] + k change,  out[j] = q S[:, j]
//
// Lanes are columns, so no sum runs across lanes, and a column's bits depend neither on how many columns are taken at
// once nor on where the state lies. A single row reads the state from where it is and writes it to where it goes. Of
// several rows, all pass some columns of the state, which stay in L1 meanwhile, before the next columns are taken.
#pragma once
#include "kernels/cpu/delta/gates_body.h"

namespace fidelio::cpu {
namespace {

// The parts of DeltaArgs::scratch.
struct DeltaScratch {
  float *q, *k;                   // (kDeltaRows, key_dim): divided by their norms
  float* transposed;              // (key_dim, kDeltaPart): k of a part
  float* block;                   // (key_dim, kDeltaColumns): columns of the state, without gaps
  float *apart, *read;            // (kDeltaRows, kDeltaPart): how rows of a part meet
  float *written, *decay, *kept;  // (kDeltaRows): the share written, and the share kept with its logarithm
  float *begun, *left;            // (kDeltaRows): the shares kept since the part began, and until it ends
  explicit DeltaScratch(const DeltaArgs& a) {
    float* next = a.scratch;
    const auto take = [&](int64_t floats) {
      float* part = next;
      next += floats;
      return part;
    };
    transposed = take(a.key_dim * kDeltaPart), block = take(a.key_dim * kDeltaColumns);
    apart = take(kDeltaRows * kDeltaPart), read = take(kDeltaRows * kDeltaPart);
    written = take(kDeltaRows), decay = take(kDeltaRows), kept = take(kDeltaRows);
    begun = take(kDeltaRows), left = take(kDeltaRows);
    q = take(kDeltaRows * a.key_dim), k = take(kDeltaRows * a.key_dim);
  }
};

// Writes x times factor / sqrt(sum x^2 + 1e-6). As in norm(), partial sums have a fixed order, and the root and the
// division are in double.
inline void to_unit(const float* x, double factor, float* y, int64_t n) {
  V sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W)
    for (int j = 0; j < 2; ++j) {
      const V v = load(x + i + j * W);
      sums[j] = fma(v, v, sums[j]);
    }
  double total = static_cast<double>(sum_lanes(sums[0] + sums[1]));
  for (; i < n; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const float scale = static_cast<float>(factor / __builtin_sqrt(total + 1e-6));
  for (i = 0; i + W <= n; i += W) store(y + i, load(x + i) * scale);
  for (; i < n; ++i) y[i] = x[i] * scale;
}

// Fills q, k and the gates of the rows. A decay below -200 keeps nothing, as -200 does, and an infinite one would spoil
// sums of decays.
inline void prepare_rows(const DeltaArgs& a, const DeltaScratch& s) {
  const double query = 1 / __builtin_sqrt(static_cast<double>(a.key_dim));
  const int64_t filled = (a.rows + W - 1) / W * W;
  for (int64_t t = a.rows; t < filled; ++t) s.written[t] = s.decay[t] = 0;
  for (int64_t t = 0; t < a.rows; ++t) {
    to_unit(a.q + t * a.stride, query, s.q + t * a.key_dim, a.key_dim);
    to_unit(a.k + t * a.stride, 1, s.k + t * a.key_dim, a.key_dim);
    s.written[t] = a.b[t * a.gate_stride];
    s.decay[t] = a.a[t * a.gate_stride];
  }
  for (int64_t t = 0; t < filled; t += W) {
    store(s.written + t, sigmoid(load(s.written + t)));
    const V decay = max(splat(-200), a.rate * softplus(load(s.decay + t) + a.bias));
    store(s.decay + t, decay);
    store(s.kept + t, exp(decay));
  }
}

// Some columns of a state in memory: `stride` floats lie between the beginnings of its rows.
struct Columns {
  float* first;
  int64_t stride;
};

// Takes row t through NV vectors of columns of the state.
template <int NV>
[[gnu::always_inline]] inline void step(const DeltaArgs& a, const DeltaScratch& s, int64_t t, Columns from, Columns to,
                                        const float* v, float* out, const float* next) {
  const float *k = s.k + t * a.key_dim, *q = s.q + t * a.key_dim;
  V known[2][NV] = {};
  int64_t i = 0;
  for (; i + 2 <= a.key_dim; i += 2) FIDELIO_UNROLL for (int half = 0; half < 2; ++half) {
      const float* row = from.first + (i + half) * from.stride;
      const V key = splat(k[i + half]);
      FIDELIO_UNROLL for (int n = 0; n < NV; ++n) known[half][n] = fma(key, load(row + n * W), known[half][n]);
    }
  for (; i < a.key_dim; ++i)
    FIDELIO_UNROLL for (int n = 0; n < NV; ++n) known[0][n] =
        fma(splat(k[i]), load(from.first + i * from.stride + n * W), known[0][n]);
  const V kept = splat(s.kept[t]), written = splat(s.written[t]);
  V change[NV], sum[NV] = {};
  FIDELIO_UNROLL for (int n = 0; n < NV; ++n) change[n] =
      written * (load(v + n * W) - kept * (known[0][n] + known[1][n]));
  for (i = 0; i < a.key_dim; ++i) {
    const float* row = from.first + i * from.stride;
    float* new_row = to.first + i * to.stride;
    const V key = splat(k[i]), query = splat(q[i]);
    FIDELIO_UNROLL for (int n = 0; n < NV; ++n) {
      const V value = fma(key, change[n], kept * load(row + n * W));
      store(new_row + n * W, value);
      sum[n] = fma(query, value, sum[n]);
    }
    if (next)
      FIDELIO_UNROLL for (int n = 0; n * W < NV * W; n += 16 / W) __builtin_prefetch(next + i * from.stride + n * W);
  }
  FIDELIO_UNROLL for (int n = 0; n < NV; ++n) store(out + n * W, sum[n]);
}

// Takes all rows through NV vectors of columns from column j on.
template <int NV>
inline void step_rows(const DeltaArgs& a, const DeltaScratch& s, const float* from, int64_t j) {
  // The state is read through a pointer that could write, but `from` is written only where it is `to`.
  const Columns source{const_cast<float*>(from) + j, a.value_dim}, target{a.to + j, a.value_dim},
      block{s.block, NV * W};
  for (int64_t t = 0; t < a.rows; ++t)
    step<NV>(a, s, t, t == 0 ? source : block, t + 1 == a.rows ? target : block, a.v + t * a.stride + j,
             a.out + t * a.out_stride + j, t == 0 && a.next ? a.next + j : nullptr);
}

// Takes all rows through the last columns, which fill no vector.
inline void step_tail(const DeltaArgs& a, const DeltaScratch& s, const float* from, int64_t j) {
  const int64_t count = a.value_dim - j;
  const Columns block{s.block, W};
  for (int64_t i = 0; i < a.key_dim; ++i)
    for (int64_t n = 0; n < W; ++n) s.block[i * W + n] = n < count ? from[i * a.value_dim + j + n] : 0;
  for (int64_t t = 0; t < a.rows; ++t) {
    float v[W] = {}, out[W];
    for (int64_t n = 0; n < count; ++n) v[n] = a.v[t * a.stride + j + n];
    step<1>(a, s, t, block, block, v, out, nullptr);
    for (int64_t n = 0; n < count; ++n) a.out[t * a.out_stride + j + n] = out[n];
  }
  for (int64_t i = 0; i < a.key_dim; ++i)
    for (int64_t n = 0; n < count; ++n) a.to[i * a.value_dim + j + n] = s.block[i * W + n];
}

// Returns the state that the rows begin from, after filling `to` with zeros where there is none.
inline const float* first_state(const DeltaArgs& a) {
  if (a.from) return a.from;
  for (int64_t i = 0; i < a.key_dim * a.value_dim; ++i) a.to[i] = 0;
  return a.to;
}

inline void delta_rows(const DeltaArgs& a) {
  const DeltaScratch s(a);
  prepare_rows(a, s);
  const float* from = first_state(a);
  // A row of 128 columns fits the registers of AVX-512. Other instruction sets have 16 of them, and of several rows
  // fewer columns are taken, so that they stay in L1.
  constexpr int kMost = W == 16 ? 8 : 4;
  static_assert(4 * W <= kDeltaColumns);
  int64_t j = 0;
  if (a.rows == 1)
    for (; j + kMost * W <= a.value_dim; j += kMost * W) step_rows<kMost>(a, s, from, j);
  for (; j + 4 * W <= a.value_dim; j += 4 * W) step_rows<4>(a, s, from, j);
  for (; j + W <= a.value_dim; j += W) step_rows<1>(a, s, from, j);
  if (j < a.value_dim) step_tail(a, s, from, j);
}

}  // namespace
}  // namespace fidelio::cpu
