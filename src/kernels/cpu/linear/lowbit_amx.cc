// This file multiplies low-bit weights with AMX. The INT8 planes of 16 rows of the batch are one matrix; 16 output
// rows' quads of a span (8 vectors as lowbit_avx512.cc has them) are the other, just as they lie in memory; their
// product is exact sums of 16 x 16:
//
//     A  16 rows x 32 INT8        B  8 quads x (16 rows x 4 u8)        C  16 rows x 16 output rows, INT32
//
// The weights of a group are unpacked once into L1 and meet all rows of the batch there. A group's integers are then
// treated with the same instructions in the same order as in lowbit_avx512.cc, so the results have the same bits.
// Batches with fewer rows than a tile, and FP4, whose groups are half a span, are left to that file.
#include <immintrin.h>

#include "kernels/cpu/linear/lowbit_avx512_body.h"
#include "kernels/cpu/linear/tile_shapes.h"

namespace fidelio::cpu::lowbit {
namespace {

constexpr int kTiles = kMaxRows / kTileRows, kQuads = kSpan / 4, kMostSpans = 4;

// Tiles 0 .. 3 are the sums of the high and the low plane, of one block and the next; 4 and 5 are the planes; 6 and 7
// are the blocks.
constexpr TileShapes kShapes = {
    .row_bytes = {64, 64, 64, 64, kSpan, kSpan, 64, 64},
    .rows = {kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kQuads, kQuads}};

// A Pass is what a pass over the weights of two blocks keeps in L1.
struct Pass {
  alignas(64) float partial[kTiles][2][kTileRows][kBlock];
  alignas(64) uint8_t weights[kMostSpans][2][kQuads][64];
  alignas(64) int32_t sums[2][2][kTileRows][kBlock];  // indexed by plane and by block
};

// Leaves the sums of a tile of rows over `spans` spans, from x on, in pass.sums.
template <bool kTwo, int kBlocks>
FIDELIO_INLINE void multiply_spans(const int8_t* x, int64_t span_bytes, int64_t spans, Pass& pass) {
  asm volatile("" ::: "memory");  // g++'s tile loads do not declare that they read memory stored before
  _tile_zero(0);
  if constexpr (kTwo) _tile_zero(1);
  if constexpr (kBlocks == 2) _tile_zero(2);
  if constexpr (kTwo && kBlocks == 2) _tile_zero(3);
  for (int64_t i = 0; i < spans; ++i, x += span_bytes) {
    _tile_loadd(4, x, kRowBytes<kTwo>);
    _tile_loadd(6, pass.weights[i][0], 64);
    _tile_dpbsud(0, 4, 6);
    if constexpr (kTwo) {
      _tile_loadd(5, x + kSpan, kRowBytes<kTwo>);
      _tile_dpbsud(1, 5, 6);
    }
    if constexpr (kBlocks == 2) {
      _tile_loadd(7, pass.weights[i][1], 64);
      _tile_dpbsud(2, 4, 7);
      if constexpr (kTwo) _tile_dpbsud(3, 5, 7);
    }
  }
  _tile_stored(0, pass.sums[0][0], 64);
  if constexpr (kTwo) _tile_stored(1, pass.sums[1][0], 64);
  if constexpr (kBlocks == 2) _tile_stored(2, pass.sums[0][1], 64);
  if constexpr (kTwo && kBlocks == 2) _tile_stored(3, pass.sums[1][1], 64);
}

// Adds a group's integers, scaled, to the partial sums of a tile of rows and one block.
template <bool kTwo, bool kView>
FIDELIO_INLINE void add_group(const Pass& pass, int block, const Group& group, float (*partial)[kBlock]) {
  for (int r = 0; r < kTileRows; ++r) {
    __m512i integer = _mm512_load_si512(pass.sums[0][block][r]);
    if constexpr (kTwo)
      integer = _mm512_add_epi32(_mm512_slli_epi32(integer, 7), _mm512_load_si512(pass.sums[1][block][r]));
    integer = placed<kView>(integer, group.shift);
    _mm512_store_ps(partial[r], accumulate(_mm512_load_ps(partial[r]), integer, group.zero, group.scale, group.sums + r,
                                           group.scales + r));
  }
}

template <int kCoding, bool kTwo, int kBlocks>
void multiply_blocks(const Job& job, int64_t block, const TileRows& rows, __m512i table,
                     const ZeroReader<kCoding>& zeros, Pass& pass) {
  const Layout& l = job.layout;
  const uint8_t* const base[2] = {job.packed + l.front + block * l.block_bytes,
                                  job.packed + l.front + (block + kBlocks - 1) * l.block_bytes};
  const Planes<kCoding> planes[2] = {Planes<kCoding>(l, base[0]), Planes<kCoding>(l, base[1])};
  const int64_t span_bytes = job.rows * kRowBytes<kTwo>, tiles = rows.tiles();
  for (int64_t t = 0; t < tiles; ++t)
    for (int b = 0; b < kBlocks; ++b)
      for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(pass.partial[t][b][r], _mm512_setzero_ps());
  for (int64_t g = 0, s = 0; g < l.activation_groups; ++g) {
    const int64_t weight_group = s / l.group_spans, left = l.spans - s;
    const int64_t spans = l.activation_group_spans < left ? l.activation_group_spans : left;
    for (int b = 0; b < kBlocks; ++b)
      for (int64_t i = 0; i < spans; ++i) {
        __m512i w[kQuads];
        unpack_span<kCoding>(planes[b], s + i, table, w);
        for (int q = 0; q < kQuads; ++q) _mm512_store_si512(pass.weights[i][b][q], w[q]);
      }
    Group groups[2];
    for (int b = 0; b < kBlocks; ++b)
      groups[b] = {zeros(base[b], weight_group), load_scales<kCoding>(l, base[b], weight_group), nullptr, nullptr,
                   shift_of<kCoding>(l)};
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t first = rows.first_of(t);
      multiply_spans<kTwo, kBlocks>(job.planes + s * span_bytes + first * kRowBytes<kTwo>, span_bytes, spans, pass);
      for (int b = 0; b < kBlocks; ++b) {
        groups[b].sums = job.sum + g * job.rows + first, groups[b].scales = job.scale + g * job.rows + first;
        add_group<kTwo, is_view(kCoding)>(pass, b, groups[b], pass.partial[t][b]);
      }
    }
    s += spans;
  }
  for (int64_t t = 0; t < tiles; ++t)
    for (int b = 0; b < kBlocks; ++b)
      for (int64_t m = rows.begin + t * kTileRows; m < rows.end && m < rows.begin + (t + 1) * kTileRows; ++m)
        store(job, block + b, m, _mm512_load_ps(pass.partial[t][b][m - rows.first_of(t)]));
}

template <int kCoding, bool kTwo>
void multiply(const Job& job) {
  if (kCoding == kFp4 || job.rows < kTileRows) return (kTwo ? kAvx512.integer.a16 : kAvx512.integer.a8)[kCoding](job);
  const __m512i table = load_table<kCoding>(job);
  const ZeroReader<kCoding> zeros(job.layout);
  Pass pass;
  _tile_loadconfig(&kShapes);
  for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows) {
    const TileRows rows{m0, m0 + kMaxRows < job.rows ? m0 + kMaxRows : job.rows, job.rows};
    int64_t block = job.first;
    for (; block + 2 <= job.last; block += 2) multiply_blocks<kCoding, kTwo, 2>(job, block, rows, table, zeros, pass);
    if (block < job.last) multiply_blocks<kCoding, kTwo, 1>(job, block, rows, table, zeros, pass);
  }
  _tile_release();
}

constexpr IntegerProducts products() {
  IntegerProducts all{};
  for_each_coding([&]<int kCoding>() {
    all.a16[kCoding] = multiply<kCoding, true>;
    all.a8[kCoding] = multiply<kCoding, false>;
  });
  return all;
}

}  // namespace

constinit const IntegerProducts kAmx = products();

}  // namespace fidelio::cpu::lowbit
