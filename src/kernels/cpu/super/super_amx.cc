// This file multiplies packed super-blocks with AMX, as linear/lowbit_amx.cc does plain integers: INT8 planes of 16
// rows of the batch times 16 output rows' quads are exact sums of 16 x 16. A group has a product of its own for either
// plane, with 8 quads or, where groups are half a span, 4. The sums are then treated as in super_avx512.cc, so the
// results have the same bits. Batches with fewer rows than a tile are left to that file.
#include "kernels/cpu/linear/tile_shapes.h"
#include "kernels/cpu/super/super_avx512_body.h"

namespace fidelio::cpu::lowbit {
namespace {

constexpr int kTiles = kMaxRows / kTileRows, kParts = 2;

// A pass takes two groups at a time: the halves of a span, or two spans.
template <int kKind>
constexpr int kQuads = has_half_groups(kKind) ? 4 : 8;
// Tiles 0 .. 3 are the sums of the high and the low plane, of one group and the next; 4 and 5 are the planes; 6 and 7
// are the weights.
template <int kKind>
constexpr TileShapes kShapes = {
    .row_bytes = {64, 64, 64, 64, 4 * kQuads<kKind>, 4 * kQuads<kKind>, 64, 64},
    .rows = {kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kQuads<kKind>, kQuads<kKind>}};

// A Pass is what a pass over the weights of a block keeps in L1.
struct Pass {
  alignas(64) float partial[kTiles][kTileRows][kBlock];
  alignas(64) uint8_t weights[kParts * 8][64];
  alignas(64) int32_t sums[kParts][2][kTileRows][kBlock];  // indexed by group and by plane
};

// Leaves the sums of a tile of rows in pass.sums. The activations of the second group, if there is one, are `next`
// bytes further.
template <int kKind, bool kTwo>
FIDELIO_INLINE void multiply_groups(const int8_t* x, int64_t next, int groups, Pass& pass) {
  asm volatile("" ::: "memory");  // g++'s tile loads do not declare that they read memory stored before
  _tile_zero(0);
  if constexpr (kTwo) _tile_zero(1);
  _tile_loadd(4, x, kRowBytes<kTwo>);
  _tile_loadd(6, pass.weights[0], 64);
  _tile_dpbsud(0, 4, 6);
  if constexpr (kTwo) {
    _tile_loadd(5, x + kSpan, kRowBytes<kTwo>);
    _tile_dpbsud(1, 5, 6);
  }
  if (groups == 2) {
    _tile_zero(2);
    if constexpr (kTwo) _tile_zero(3);
    _tile_loadd(4, x + next, kRowBytes<kTwo>);
    _tile_loadd(7, pass.weights[kQuads<kKind>], 64);
    _tile_dpbsud(2, 4, 7);
    if constexpr (kTwo) {
      _tile_loadd(5, x + next + kSpan, kRowBytes<kTwo>);
      _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(2, pass.sums[1][0], 64);
    if constexpr (kTwo) _tile_stored(3, pass.sums[1][1], 64);
  }
  _tile_stored(0, pass.sums[0][0], 64);
  if constexpr (kTwo) _tile_stored(1, pass.sums[0][1], 64);
}

// Returns a row's partial sums plus group `part`, with the sum of its activations.
template <int kKind, bool kTwo>
FIDELIO_INLINE __m512 add_group(__m512 partial, const Pass& pass, int part, int row, const Terms& terms, int32_t sum,
                                float scale) {
  __m512i integer = _mm512_load_si512(pass.sums[part][0][row]);
  if constexpr (kTwo)
    integer = _mm512_add_epi32(_mm512_slli_epi32(integer, 7), _mm512_load_si512(pass.sums[part][1][row]));
  return close_group<kKind>(partial, integer, terms, sum, scale);
}

// Adds the groups of one or two spans from s on for all rows; their weights are in `pass`.
template <int kKind, bool kTwo>
FIDELIO_INLINE void add_spans(const Job& job, const TileRows& rows, int64_t s, int spans, const SpanTerms<kKind>* terms,
                              Pass& pass) {
  constexpr bool kHalves = has_half_groups(kKind);
  for (int64_t t = 0; t < rows.tiles(); ++t) {
    const int64_t first = s * job.rows + rows.first_of(t);
    multiply_groups<kKind, kTwo>(job.planes + first * kRowBytes<kTwo>, kHalves ? kHalf : job.rows * kRowBytes<kTwo>,
                                 kHalves ? 2 : spans, pass);
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t at = first + r, next = at + job.rows;
      __m512 partial = _mm512_load_ps(pass.partial[t][r]);
      partial = add_group<kKind, kTwo>(partial, pass, 0, r, terms[0].first, kHalves ? job.half[at] : job.sum[at],
                                       job.scale[at]);
      if constexpr (kHalves)
        partial =
            add_group<kKind, kTwo>(partial, pass, 1, r, terms[0].second, job.sum[at] - job.half[at], job.scale[at]);
      else if (spans == 2)
        partial = add_group<kKind, kTwo>(partial, pass, 1, r, terms[1].first, job.sum[next], job.scale[next]);
      _mm512_store_ps(pass.partial[t][r], partial);
    }
  }
}

template <int kKind, bool kTwo>
void multiply_block(const SuperJob& super, int64_t block, const TileRows& rows, __m512i table, Pass& pass) {
  constexpr int kCoding = coding_of_super(kKind), kSpans = has_half_groups(kKind) ? 1 : 2;
  const Job& job = super.job;
  const Layout& l = job.layout;
  const uint8_t* base = job.packed + l.front + block * l.block_bytes;
  const Planes<kCoding> planes(l, base);
  for (int64_t t = 0; t < rows.tiles(); ++t)
    for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(pass.partial[t][r], _mm512_setzero_ps());
  for (int64_t s = 0; s < l.spans; s += kSpans) {
    const int spans = l.spans - s < kSpans ? 1 : kSpans;
    SpanTerms<kKind> terms[kSpans];
    for (int i = 0; i < spans; ++i) {
      const int64_t u = (s + i) / super.super_spans;
      const __m512 d = load_halves(base + super.super_offset + 2 * kBlock * u);
      const __m512 m =
          has_minima(kKind) ? load_halves(base + super.minimum_offset + 2 * kBlock * u) : _mm512_setzero_ps();
      terms[i] = SpanTerms<kKind>(super, base, s + i, d, m);
      __m512i w[8];
      unpack_span<kCoding>(planes, s + i, table, w);
      for (int q = 0; q < 8; ++q) _mm512_store_si512(pass.weights[8 * i + q], w[q]);
    }
    add_spans<kKind, kTwo>(job, rows, s, spans, terms, pass);
  }
  for (int64_t t = 0; t < rows.tiles(); ++t)
    for (int64_t m = rows.begin + t * kTileRows; m < rows.end && m < rows.begin + (t + 1) * kTileRows; ++m)
      store(job, block, m, _mm512_load_ps(pass.partial[t][m - rows.first_of(t)]));
}

template <int kKind, bool kTwo>
void multiply(const SuperJob& super) {
  const Job& job = super.job;
  if (job.rows < kTileRows) return (kTwo ? kSuperAvx512.a16 : kSuperAvx512.a8)[kKind](super);
  const __m512i table = load_table<coding_of_super(kKind)>(job);
  Pass pass;
  _tile_loadconfig(&kShapes<kKind>);
  for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows) {
    const TileRows rows{m0, m0 + kMaxRows < job.rows ? m0 + kMaxRows : job.rows, job.rows};
    for (int64_t block = job.first; block < job.last; ++block)
      multiply_block<kKind, kTwo>(super, block, rows, table, pass);
  }
  _tile_release();
}

constexpr SuperKernels kernels() {
  SuperKernels all{};
  for_each_super([&]<int kKind>() {
    all.a16[kKind] = multiply<kKind, true>;
    all.a8[kKind] = multiply<kKind, false>;
  });
  return all;
}

}  // namespace

constinit const SuperKernels kSuperAmx = kernels();

}  // namespace fidelio::cpu::lowbit
