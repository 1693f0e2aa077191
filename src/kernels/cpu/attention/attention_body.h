// This file computes attention over the paged cache; it is compiled once per instruction set. kernel_set.h describes
// the record and how the work is divided.
//
// One tile is up to 32 consecutive query positions of one sequence and all heads that share one kv head. A page is
// widened to FP32 once per tile, keys first, then values. For every few rows of the tile the steps are
//
//     scores[r][32 positions] = q[r][i] * keys[i][32]         chain over i, lanes are positions
//     online softmax          m' = max(m, scores), p = e^(s - m'), l = l e^(m - m') + sum p
//     sums[r][e]              = sums e^(m - m') + p[r][t] * values[t][e]   chain over t, lanes are features
//
// A page that a row does not see changes nothing in it: every p is 0 and the correction e^0 is 1.
#pragma once
#include "kernels/cpu/attention/kv_page_body.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/simd.h"

namespace fidelio::cpu {
namespace {

constexpr float kLowest = -3.0e38f;  // finite, so that the difference of two of them is 0 and not NaN

// The rows of a tile are (position, head of the group), heads fastest.
struct Tile {
  const AttendArgs& a;
  int group, rows;
  int64_t e, padded;
  float *keys, *values, *scores, *sums, *total_sums, *maximum, *total, *chunk_maximum, *chunk_total, *correction;

  explicit Tile(const AttendArgs& args) : a(args) {
    group = a.heads / a.kv_heads;
    rows = a.rows * group;
    e = a.record.e;
    padded = padded_head(e);
    keys = a.scratch;
    values = keys + kTokens * padded;
    scores = values + kTokens * padded;
    sums = scores + rows * kTokens;
    total_sums = sums + rows * padded;
    maximum = total_sums + rows * padded;
    total = maximum + rows;
    chunk_maximum = total + rows;
    chunk_total = chunk_maximum + rows;
    correction = chunk_total + rows;
    for (int64_t i = 0; i < kTokens * padded; ++i) values[i] = 0;
  }
  const float* query(int row) const {
    return a.q + static_cast<int64_t>(row / group * a.heads + a.kv_head * group + row % group) * e;
  }
  float* output(int row) const { return a.out + (query(row) - a.q); }
  int64_t position(int row) const { return a.first_position + row / group; }
};

template <int R>
void scores_of(const Tile& tile, int row) {
  constexpr int N = kTokens / W;
  V acc[R][N] = {};
  const float* q[R];
  for (int r = 0; r < R; ++r) q[r] = tile.query(row + r);
  const float* keys = tile.keys;
  for (int64_t i = 0; i < tile.e; ++i, keys += kTokens) {
    V k[N];
    FIDELIO_UNROLL for (int n = 0; n < N; ++n) k[n] = load(keys + n * W);
    FIDELIO_UNROLL for (int r = 0; r < R; ++r) {
      const V x = splat(q[r][i]);
      FIDELIO_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = fma(k[n], x, acc[r][n]);
    }
  }
  const V scale = splat(tile.a.scale);
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(tile.scores + (row + r) * kTokens + n * W, acc[r][n] * scale);
}

// Turns scores into probabilities relative to the row's running maximum; positions outside [low, high] of the page
// are masked.
inline void soften(const Tile& tile, int row, int64_t page) {
  constexpr int N = kTokens / W;
  float* scores = tile.scores + row * kTokens;
  const int64_t position = tile.position(row), first = tile.a.window > 0 ? position - tile.a.window + 1 : 0;
  const int64_t low = first - page * kTokens, high = position - page * kTokens;
  if (low > 0 || high < kTokens - 1)
    for (int t = 0; t < kTokens; ++t)
      if (t < low || t > high) scores[t] = -__builtin_inff();
  V s[N], top = splat(kLowest);
  for (int n = 0; n < N; ++n) top = max(s[n] = load(scores + n * W), top);
  const float before = tile.chunk_maximum[row], found = max_lanes(top), now = found > before ? found : before;
  V sum = V{};
  for (int n = 0; n < N; ++n) {
    const V p = exp(s[n] - now);  // e^-inf = 0
    sum += p;
    store(scores + n * W, p);
  }
  const float correction = exp(splat(before - now))[0];
  tile.correction[row] = correction;
  tile.chunk_maximum[row] = now;
  tile.chunk_total[row] = tile.chunk_total[row] * correction + sum_lanes(sum);
}

template <int R, int N>
void sum_values(const Tile& tile, int row, int64_t column, int count) {
  V acc[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n)
      acc[r][n] = load(tile.sums + (row + r) * tile.padded + column + n * W) * tile.correction[row + r];
  const float* values = tile.values + column;
  const float* p = tile.scores + row * kTokens;
  for (int t = 0; t < count; ++t, values += tile.padded) {
    V v[N];
    FIDELIO_UNROLL for (int n = 0; n < N; ++n) v[n] = load(values + n * W);
    FIDELIO_UNROLL for (int r = 0; r < R; ++r) {
      const V x = splat(p[r * kTokens + t]);
      FIDELIO_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = fma(v[n], x, acc[r][n]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(tile.sums + (row + r) * tile.padded + column + n * W, acc[r][n]);
}

template <int R>
void sum_rows(const Tile& tile, int row, int count) {
  constexpr int N = W == 16 ? 4 : 2;
  int64_t column = 0;
  for (; column + N * W <= tile.padded; column += N * W) sum_values<R, N>(tile, row, column, count);
  for (; column < tile.padded; column += W) sum_values<R, 1>(tile, row, column, count);
}

inline void attend_page(const Tile& tile, int64_t page) {
  constexpr int kScoreRows = W == 16 ? 8 : W == 8 ? 3 : 1, kSumRows = W == 4 ? 4 : 6;
  const AttendArgs& a = tile.a;
  const std::byte* record = a.layer + (a.pages[page] * int64_t{a.kv_heads} + a.kv_head) * a.record.bytes();
  const int64_t seen = tile.position(tile.rows - 1) - page * kTokens + 1;
  const int count = seen < kTokens ? static_cast<int>(seen) : kTokens;
  widen_keys(a.record, record, tile.keys);
  int row = 0;
  for (; row + kScoreRows <= tile.rows; row += kScoreRows) scores_of<kScoreRows>(tile, row);
  for (; row < tile.rows; ++row) scores_of<1>(tile, row);
  for (row = 0; row < tile.rows; ++row) soften(tile, row, page);
  widen_values(a.record, record, count, tile.values);
  for (row = 0; row + kSumRows <= tile.rows; row += kSumRows) sum_rows<kSumRows>(tile, row, count);
  for (; row + 2 <= tile.rows; row += 2) sum_rows<2>(tile, row, count);
  for (; row < tile.rows; ++row) sum_rows<1>(tile, row, count);
}

// Merges (maximum, total, sums) of a chunk into those of a row.
inline void merge_row(const Tile& tile, int row, const float* sums, float maximum, float total) {
  const float before = tile.maximum[row], now = maximum > before ? maximum : before;
  const V factors = exp(splat(before - now)), others = exp(splat(maximum - now));
  tile.maximum[row] = now;
  tile.total[row] = tile.total[row] * factors[0] + total * others[0];
  float* merged = tile.total_sums + row * tile.padded;
  for (int64_t i = 0; i < tile.padded; i += W) store(merged + i, load(merged + i) * factors + load(sums + i) * others);
}

inline void reset(float* sums, float* maximum, float* total, int64_t rows, int64_t padded) {
  for (int64_t i = 0; i < rows * padded; ++i) sums[i] = 0;
  for (int64_t i = 0; i < rows; ++i) maximum[i] = kLowest, total[i] = 0;
}

// A sink has no value, so it adds a term to the sum alone. The sums' factor is 1 where the sink is no maximum.
inline float inverse_total(const Tile& tile, int row) {
  if (!tile.a.sinks) return 1.0f / tile.total[row];
  const float sink = tile.a.sinks[tile.a.kv_head * tile.group + row % tile.group], before = tile.maximum[row];
  const float now = sink > before ? sink : before;
  const float factor = exp(splat(before - now))[0], term = exp(splat(sink - now))[0];
  return factor / (tile.total[row] * factor + term);
}

inline void write_rows(const Tile& tile) {
  for (int row = 0; row < tile.rows; ++row) {
    const float inverse = inverse_total(tile, row);
    float* out = tile.output(row);
    for (int64_t i = 0; i < tile.e; ++i) out[i] = tile.total_sums[row * tile.padded + i] * inverse;
  }
}

// Computes one chunk of a tile, leaving (sums, maximum, total) of every row in sums, chunk_maximum and chunk_total.
inline void attend_chunk(const Tile& tile, int64_t chunk) {
  const AttendArgs& a = tile.a;
  const int64_t first_seen =
      a.window > 0 && a.first_position >= a.window ? (a.first_position - a.window + 1) / kTokens : 0;
  const int64_t last_page = tile.position(tile.rows - 1) / kTokens;
  int64_t page = chunk * kChunkPages;
  const int64_t end = page + kChunkPages <= last_page + 1 ? page + kChunkPages : last_page + 1;
  if (page < first_seen) page = first_seen;
  reset(tile.sums, tile.chunk_maximum, tile.chunk_total, tile.rows, tile.padded);
  for (; page < end; ++page) attend_page(tile, page);
}

// Computes chunks [first_chunk, last_chunk). They are merged and divided into `out`, or, if `partial` is not null,
// written there for merge().
inline void attend(const AttendArgs& a) {
  const Tile tile(a);
  if (!a.partial) reset(tile.total_sums, tile.maximum, tile.total, tile.rows, tile.padded);
  float* partial = a.partial;
  for (int64_t chunk = a.first_chunk; chunk < a.last_chunk; ++chunk) {
    attend_chunk(tile, chunk);
    for (int row = 0; row < tile.rows; ++row) {
      const float* sums = tile.sums + row * tile.padded;
      if (!a.partial) {
        merge_row(tile, row, sums, tile.chunk_maximum[row], tile.chunk_total[row]);
        continue;
      }
      for (int64_t i = 0; i < tile.padded; ++i) partial[i] = sums[i];
      partial[tile.padded] = tile.chunk_maximum[row];
      partial[tile.padded + 1] = tile.chunk_total[row];
      partial += tile.padded + 2;
    }
  }
  if (!a.partial) write_rows(tile);
}

inline void merge(const AttendArgs& a, const float* partial) {
  const Tile tile(a);
  reset(tile.total_sums, tile.maximum, tile.total, tile.rows, tile.padded);
  for (int64_t chunk = a.first_chunk; chunk < a.last_chunk; ++chunk)
    for (int row = 0; row < tile.rows; ++row, partial += tile.padded + 2)
      merge_row(tile, row, partial, partial[tile.padded], partial[tile.padded + 1]);
  write_rows(tile);
}

}  // namespace
}  // namespace fidelio::cpu
