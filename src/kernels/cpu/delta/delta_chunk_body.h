// This file computes the gated delta rule for a whole chunk of kDeltaRows rows of one sequence and one head, a part of
// kDeltaPart rows at a time (Yang et al., arXiv 2412.06464, section 3.3). It is compiled once for each instruction set.
//
// Let S be the state before a part, d[i][l] the share of a state that is kept from row l to row i, and d[i] the share
// kept since the part began. Then the changes x of the part's rows and what their queries read are
//
//   x[i] = written[i] (v[i] - d[i] k[i] S - sum over l < i of d[i][l] (k[i] k[l]) x[l])
//   out[i] = d[i] q[i] S + sum over l <= i of d[i][l] (q[i] k[l]) x[l]
//   S = d[last] S + sum over i of d[last][i] k[i] x[i]
//
// The sums over l < i are solved forwards. Products of rows with S and with each other are products of small matrices.
// Each d is e to a sum of decays, all of one sign, so no difference of large sums is taken. Longer parts would spend
// more on rows that meet each other; with shorter ones S would be read more often.
//
// The products of keys and queries of a part come first. Then, as in delta_body.h, all parts pass some columns of the
// state before the next columns are taken.
#pragma once
#include "kernels/cpu/delta/delta_body.h"

namespace fidelio::cpu {
namespace {

constexpr int kParts = kDeltaRows / kDeltaPart;
// A tile of sums has this many rows. With two vectors of columns they fill half of the registers.
constexpr int kChunkTile = W == 16 ? 8 : 4;

// acc[r][n] += sum over p of a[r a_stride + p a_step] b[p NV W + n W ...], for R rows and NV vectors.
template <int R, int NV>
[[gnu::always_inline]] inline void add_products(const float* a, int64_t a_stride, int64_t a_step, const float* b,
                                                int64_t depth, V (&acc)[R][NV]) {
  for (int64_t p = 0; p < depth; ++p, a += a_step, b += NV * W) {
    V column[NV];
    FIDELIO_UNROLL for (int n = 0; n < NV; ++n) column[n] = load(b + n * W);
    FIDELIO_UNROLL for (int r = 0; r < R; ++r) {
      const V value = splat(a[r * a_stride]);
      FIDELIO_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = fma(value, column[n], acc[r][n]);
    }
  }
}

// y (kDeltaPart, NV W) = a (kDeltaPart, depth) b (depth, NV W).
template <int NV>
inline void multiply_part(const float* a, const float* b, int64_t depth, float* y) {
  for (int first = 0; first < kDeltaPart; first += kChunkTile) {
    V acc[kChunkTile][NV] = {};
    add_products<kChunkTile, NV>(a + first * depth, depth, 1, b, depth, acc);
    FIDELIO_UNROLL for (int r = 0; r < kChunkTile; ++r) FIDELIO_UNROLL for (int n = 0; n < NV; ++n)
        store(y + (first + r) * NV * W + n * W, acc[r][n]);
  }
}

// Fills what rows of a part need of each other: -written[i] d[i][l] (k[i] k[l]) for l < i, d[i][l] (q[i] k[l]) for l <=
// i, and zeros elsewhere; the shares kept since the part began, and until it ends.
inline void meet(const DeltaArgs& a, const DeltaScratch& s, int part) {
  constexpr int kVectors = kDeltaPart / W;
  const int64_t first = part * kDeltaPart;
  const float *k = s.k + first * a.key_dim, *q = s.q + first * a.key_dim, *decay = s.decay + first;
  float *apart = s.apart + first * kDeltaPart, *read = s.read + first * kDeltaPart;
  for (int64_t p = 0; p < a.key_dim; ++p)
    for (int l = 0; l < kDeltaPart; ++l) s.transposed[p * kDeltaPart + l] = k[l * a.key_dim + p];
  multiply_part<kVectors>(k, s.transposed, a.key_dim, apart);
  multiply_part<kVectors>(q, s.transposed, a.key_dim, read);
  float so_far = 0;
  for (int i = 0; i < kDeltaPart; ++i) s.begun[first + i] = so_far += decay[i];
  for (int l = 0; l < kDeltaPart; l += W) {
    store(s.begun + first + l, exp(load(s.begun + first + l)));
    I lane;
    for (int n = 0; n < W; ++n) lane[n] = l + n;
    V sum{}, share{};
    for (int i = 0; i < kDeltaPart; ++i) {
      float *known = apart + i * kDeltaPart + l, *asked = read + i * kDeltaPart + l;
      sum = lane < i ? sum + decay[i] : V{};
      share = exp(sum);
      store(known, lane < i ? -s.written[first + i] * share * load(known) : V{});
      store(asked, lane <= i ? share * load(asked) : V{});
    }
    store(s.left + first + l, share);
  }
}

// S = d[last] S + sum of k[i] x[i], where x is multiplied by d[last][i] already, for R rows of S from row p on.
template <int R, int NV>
inline void change_state(const DeltaArgs& a, const DeltaScratch& s, int64_t first, const float* x, int64_t p) {
  float* rows = s.block + p * NV * W;
  const V kept = splat(s.begun[first + kDeltaPart - 1]);
  V acc[R][NV];
  FIDELIO_UNROLL for (int r = 0; r < R; ++r) FIDELIO_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] =
      kept * load(rows + r * NV * W + n * W);
  add_products<R, NV>(s.k + first * a.key_dim + p, 1, a.key_dim, x, kDeltaPart, acc);
  FIDELIO_UNROLL for (int r = 0; r < R; ++r) FIDELIO_UNROLL for (int n = 0; n < NV; ++n)
      store(rows + r * NV * W + n * W, acc[r][n]);
}

// Loads or stores a row of NV vectors of which `count` columns are there.
template <int NV>
[[gnu::always_inline]] inline void load_row(const float* from, int64_t count, V (&to)[NV]) {
  float few[NV * W] = {};
  if (count < NV * W) {
    for (int64_t n = 0; n < count; ++n) few[n] = from[n];
    from = few;
  }
  FIDELIO_UNROLL for (int n = 0; n < NV; ++n) to[n] = load(from + n * W);
}
template <int NV>
[[gnu::always_inline]] inline void store_row(const V (&from)[NV], int64_t count, float* to) {
  float few[NV * W];
  float* whole = count < NV * W ? few : to;
  FIDELIO_UNROLL for (int n = 0; n < NV; ++n) store(whole + n * W, from[n]);
  if (whole == few)
    for (int64_t n = 0; n < count; ++n) to[n] = few[n];
}

// Computes the changes x of a part's rows from `tile` on, where those of the rows before are known.
template <int NV>
inline void solve(const DeltaArgs& a, const DeltaScratch& s, int64_t first, int tile, int64_t j, int64_t count,
                  float* x) {
  const int64_t t = first + tile;
  V acc[kChunkTile][NV] = {};
  add_products<kChunkTile, NV>(s.k + t * a.key_dim, a.key_dim, 1, s.block, a.key_dim, acc);
  FIDELIO_UNROLL for (int r = 0; r < kChunkTile; ++r) {
    V value[NV];
    load_row<NV>(a.v + (t + r) * a.stride + j, count, value);
    FIDELIO_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = s.written[t + r] * (value[n] - s.begun[t + r] * acc[r][n]);
  }
  const float* apart = s.apart + t * kDeltaPart;
  add_products<kChunkTile, NV>(apart, kDeltaPart, 1, x, tile, acc);
  FIDELIO_UNROLL for (int r = 0; r < kChunkTile; ++r) {
    FIDELIO_UNROLL for (int l = 0; l < r; ++l) {
      const V value = splat(apart[r * kDeltaPart + tile + l]);
      FIDELIO_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = fma(value, acc[l][n], acc[r][n]);
    }
    FIDELIO_UNROLL for (int n = 0; n < NV; ++n) store(x + ((tile + r) * NV + n) * W, acc[r][n]);
  }
}

// Computes what the queries of a part's rows from `tile` on read.
template <int NV>
inline void read_tile(const DeltaArgs& a, const DeltaScratch& s, int64_t first, int tile, int64_t j, int64_t count,
                      const float* x) {
  const int64_t t = first + tile;
  V acc[kChunkTile][NV] = {};
  add_products<kChunkTile, NV>(s.q + t * a.key_dim, a.key_dim, 1, s.block, a.key_dim, acc);
  FIDELIO_UNROLL for (int r = 0; r < kChunkTile; ++r) FIDELIO_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] *=
      s.begun[t + r];
  add_products<kChunkTile, NV>(s.read + t * kDeltaPart, kDeltaPart, 1, x, tile + kChunkTile, acc);
  FIDELIO_UNROLL for (int r = 0; r < kChunkTile; ++r) store_row<NV>(acc[r], count, a.out + (t + r) * a.out_stride + j);
}

// Takes a part through the columns of the state that are in the block, `count` columns from column j on.
template <int NV>
inline void take_part(const DeltaArgs& a, const DeltaScratch& s, int part, int64_t j, int64_t count) {
  const int64_t first = part * kDeltaPart;
  float x[kDeltaPart * NV * W];
  for (int tile = 0; tile < kDeltaPart; tile += kChunkTile) solve<NV>(a, s, first, tile, j, count, x);
  for (int tile = 0; tile < kDeltaPart; tile += kChunkTile) read_tile<NV>(a, s, first, tile, j, count, x);
  for (int i = 0; i < kDeltaPart; ++i) FIDELIO_UNROLL for (int n = 0; n < NV; ++n) {
      float* row = x + (i * NV + n) * W;
      store(row, s.left[first + i] * load(row));
    }
  int64_t p = 0;
  for (; p + kChunkTile <= a.key_dim; p += kChunkTile) change_state<kChunkTile, NV>(a, s, first, x, p);
  for (; p < a.key_dim; ++p) change_state<1, NV>(a, s, first, x, p);
}

// Takes all parts through `count` columns of the state from column j on.
template <int NV>
inline void chunk_columns(const DeltaArgs& a, const DeltaScratch& s, const float* from, int64_t j, int64_t count) {
  V row[NV];
  for (int64_t p = 0; p < a.key_dim; ++p) {
    load_row<NV>(from + p * a.value_dim + j, count, row);
    store_row<NV>(row, NV * W, s.block + p * NV * W);
  }
  for (int part = 0; part < kParts; ++part) take_part<NV>(a, s, part, j, count);
  for (int64_t p = 0; p < a.key_dim; ++p) {
    load_row<NV>(s.block + p * NV * W, NV * W, row);
    store_row<NV>(row, count, a.to + p * a.value_dim + j);
  }
}

inline void delta_chunk(const DeltaArgs& a) {
  const DeltaScratch s(a);
  prepare_rows(a, s);
  for (int part = 0; part < kParts; ++part) meet(a, s, part);
  const float* from = first_state(a);
  static_assert(2 * W <= kDeltaColumns && kDeltaPart % kChunkTile == 0 && kDeltaPart % W == 0);
  int64_t j = 0;
  for (; j + 2 * W <= a.value_dim; j += 2 * W) chunk_columns<2>(a, s, from, j, 2 * W);
  for (; j < a.value_dim; j += W) chunk_columns<1>(a, s, from, j, a.value_dim - j < W ? a.value_dim - j : W);
}

}  // namespace
}  // namespace fidelio::cpu
