// The paged cache and attention over it, once per instruction set. See kernel_set.h for the record and the grid.
//
// One tile is up to 32 consecutive query positions of one sequence and all heads that share one kv head. A page is
// widened to FP32 once per tile, keys first, then values; then for every few rows of the tile
//     scores[r][32 positions] = q[r][i] * keys[i][32]         chain over i, lanes are positions
//     online softmax          m' = max(m, scores), p = e^(s - m'), l = l e^(m - m') + sum p
//     sums[r][e]              = sums e^(m - m') + p[r][t] * values[t][e]   chain over t, lanes are features
// A page that a row does not see changes nothing in it: every p is 0 and the correction e^0 is 1.
#pragma once
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/simd.h"

namespace fidelio::cpu {
namespace {

constexpr float kLowest = -3.0e38f;  // finite, so that the difference of two of them is 0 and not NaN

// --- one page in FP32 ----------------------------------------------------------------------------------------------
inline V load_element(KvKind kind, const std::byte* part, int64_t i) {  // W elements from i of the 2 or 4 byte formats
  switch (kind) {
    case KvKind::f32:
      return load(reinterpret_cast<const float*>(part) + i);
    case KvKind::f16:
      return load_halves(part + 2 * i);
    case KvKind::bf16:
      return load_bf16(part + 2 * i);
    default:
      return to_float(load_bytes(part + i));
  }
}
// Codes of W consecutive bytes' low (shift 0) or high (shift 4) nibbles of both planes: 16 high + low.
inline V load_nibbles(const std::byte* high, const std::byte* low, int64_t i, int shift) {
  const U h = (load_bytes(high + i) >> shift) & 15, l = (load_bytes(low + i) >> shift) & 15;
  return to_float(h * 16 + l);
}

inline void widen_keys(const KvRecord& record, const std::byte* page, float* keys) {  // keys (e, 32)
  const float* scale = reinterpret_cast<const float*>(page + 2 * record.part_bytes());
  const std::byte* low = page + record.e * 16;
  for (int64_t i = 0; i < record.e; ++i)
    for (int t = 0; t < kTokens; t += W) {
      V v;
      if (record.kind == KvKind::i4x2)
        v = load_nibbles(page, low, i * 16 + t % 16, t < 16 ? 0 : 4);
      else
        v = load_element(record.kind, page, i * kTokens + t);
      if (record.has_scales()) v = fma(v, load(scale + t), load(scale + kTokens + t));
      store(keys + i * kTokens + t, v);
    }
}

// values (32, padded e) of the first `count` positions; the padding stays as it is (zero).
inline void widen_values(const KvRecord& record, const std::byte* page, int count, float* values) {
  const int64_t e = record.e, half = e / 2, padded = padded_head(e);
  const std::byte* part = page + record.part_bytes();
  const std::byte* low = part + kTokens * half;
  const float* scale = reinterpret_cast<const float*>(page + 2 * record.part_bytes()) + 2 * kTokens;
  for (int t = 0; t < count; ++t) {
    float* out = values + t * padded;
    if (record.kind == KvKind::i4x2) {
      for (int64_t i = 0; i < half; ++i) {
        const int h = static_cast<int>(part[t * half + i]), l = static_cast<int>(low[t * half + i]);
        out[i] = static_cast<float>((h & 15) * 16 + (l & 15));
        out[i + half] = static_cast<float>((h >> 4) * 16 + (l >> 4));
      }
    } else {
      // The last vector of a row may read into the next row, and of the last row into the scales: it is cut below.
      int64_t i = 0;
      for (; i + W <= e; i += W) store(out + i, load_element(record.kind, part, t * e + i));
      if (i < e) {
        float tail[W];
        store(tail, load_element(record.kind, part, t * e + i));
        for (int64_t j = i; j < e; ++j) out[j] = tail[j - i];
      }
    }
    if (record.has_scales())
      for (int64_t i = 0; i < e; ++i) out[i] = scale[kTokens + t] + scale[t] * out[i];
  }
}

inline void write_element(KvKind kind, std::byte* part, int64_t i, float x) {
  if (kind == KvKind::f32) {
    reinterpret_cast<float*>(part)[i] = x;
  } else if (kind == KvKind::bf16) {
    reinterpret_cast<uint16_t*>(part)[i] = round_to_bf16(x);
  } else {
    const float saturated = x > 65504.0f    ? 65504.0f
                            : x < -65504.0f ? -65504.0f
                                            : x;  // an infinity would poison the row
    reinterpret_cast<uint16_t*>(part)[i] = round_to_half(saturated);
  }
}

// Asymmetric 8-bit codes of one head of one token: x ~ zero + scale * code, zero the minimum. Returns them through
// `code`.
struct Quantised {
  float scale, zero, inverse;
  Quantised(const float* x, int64_t e) {
    float low = x[0], high = x[0];
    for (int64_t i = 1; i < e; ++i) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    scale = (high - low) / 255.0f;
    zero = low;
    inverse = scale > 0 ? 1.0f / scale : 0.0f;
  }
  int code(float x) const {
    const int q = static_cast<int>((x - zero) * inverse + 0.5f);
    return q < 0 ? 0 : q > 255 ? 255 : q;
  }
};
inline void set_nibble(std::byte& b, bool high, int code) {
  b = high ? (b & std::byte{0x0f}) | static_cast<std::byte>(code << 4)
           : (b & std::byte{0xf0}) | static_cast<std::byte>(code);
}

inline void append(const KvRecord& record, std::byte* page, int t, const float* key, const float* value) {
  const int64_t e = record.e, half = e / 2;
  std::byte* values = page + record.part_bytes();
  if (!record.has_scales()) {
    for (int64_t i = 0; i < e; ++i) write_element(record.kind, page, i * kTokens + t, key[i]);
    for (int64_t i = 0; i < e; ++i) write_element(record.kind, values, t * e + i, value[i]);
    return;
  }
  const Quantised k(key, e), v(value, e);
  float* scale = reinterpret_cast<float*>(page + 2 * record.part_bytes());
  scale[t] = k.scale;
  scale[kTokens + t] = k.zero;
  scale[2 * kTokens + t] = v.scale;
  scale[3 * kTokens + t] = v.zero;
  for (int64_t i = 0; i < e; ++i) {
    const int kc = k.code(key[i]), vc = v.code(value[i]);
    if (record.kind == KvKind::i8) {
      page[i * kTokens + t] = static_cast<std::byte>(kc);
      values[t * e + i] = static_cast<std::byte>(vc);
      continue;
    }
    set_nibble(page[i * 16 + t % 16], t >= 16, kc >> 4);
    set_nibble(page[e * 16 + i * 16 + t % 16], t >= 16, kc & 15);
    set_nibble(values[t * half + i % half], i >= half, vc >> 4);
    set_nibble(values[kTokens * half + t * half + i % half], i >= half, vc & 15);
  }
}

// --- attention -----------------------------------------------------------------------------------------------------
// Rows of a tile are (position, head of the group), heads fastest.
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

// scores -> probabilities relative to the row's running maximum; positions outside [low, high] of the page are masked.
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

// (maximum, total, sums) of a row += those of a chunk.
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

inline void write_rows(const Tile& tile) {
  for (int row = 0; row < tile.rows; ++row) {
    const float inverse = 1.0f / tile.total[row];
    float* out = tile.output(row);
    for (int64_t i = 0; i < tile.e; ++i) out[i] = tile.total_sums[row * tile.padded + i] * inverse;
  }
}

// One chunk of a tile, leaving (sums, maximum, total) of every row in sums, chunk_maximum, chunk_total.
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

// Chunks [first, last): merged and divided into `out`, or, with `partial`, written there for merge().
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
