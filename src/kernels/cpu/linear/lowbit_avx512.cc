// This file multiplies low-bit weights with AVX-512 (F BW VL DQ VNNI VBMI): 16 output rows are the 16 INT32 lanes of
// a register. Weights are unpacked once into registers, 64 columns x 16 rows in 16 registers, and meet every row of
// the batch there:
//
//     w[0..15]  u8: quads of 4 columns           x: 4 INT8 of one plane, broadcast from memory
//     hi += w . x_hi      lo += w . x_lo         (vpdpbusd, exact)
//     at the end of a group:  partial += (s_w s_x) float((hi << 7) + lo - zero * sum_x)
//
// The integer fits, since |q - zero| <= 255, |x| <= 16319 and a group has 128 columns: 255 * 16319 * 128 < 2^29. The
// same arithmetic serves one row and a prefill of thousands, so a row's bits do not depend on M.
//
// A tile of weights unpacked to INT8 in L1 with a two-dimensional register tile was rejected: broadcasts from memory
// issue beside the dot products, so it had nothing left to save.
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/linear/lowbit_avx512_body.h"
#include "kernels/cpu/linear/lowbit_merge.h"
#include "kernels/cpu/linear/lowbit_prepare.h"

namespace fidelio::cpu::lowbit {
namespace {

// Returns (hi << 7) + lo of kSpans spans for one row. x points to the row in the first span; the next span is
// `span_bytes` further.
template <bool kTwo, int kSpans>
FIDELIO_INLINE __m512i dot(const __m512i* w, const int8_t* x, int64_t span_bytes) {
  Sums hi, lo;
  dot_quads<kTwo, 0, 8>(w, x, hi, lo);
  __m512i high = hi.total(), low = kTwo ? lo.total() : __m512i{};
  if constexpr (kSpans == 2) {
    Sums second_hi, second_lo;
    dot_quads<kTwo, 0, 8>(w + 8, x + span_bytes, second_hi, second_lo);
    high = _mm512_add_epi32(high, second_hi.total());
    if constexpr (kTwo) low = _mm512_add_epi32(low, second_lo.total());
  }
  return kTwo ? _mm512_add_epi32(_mm512_slli_epi32(high, 7), low) : high;
}

// Multiplies one row of activations; everything stays in registers.
template <int kCoding, bool kTwo>
void multiply_one(const Job& job) {
  const Layout& l = job.layout;
  const __m512i table = load_table<kCoding>(job);
  const ZeroReader<kCoding> zeros(l);
  for (int64_t block = job.first; block < job.last; ++block) {
    const uint8_t* base = job.packed + l.front + block * l.block_bytes;
    const Planes<kCoding> planes(l, base);
    __m512 partial = _mm512_setzero_ps();
    for (int64_t g = 0, s = 0; g < l.activation_groups; ++g) {
      const int64_t weight_group = s / l.group_spans;
      const int64_t end = s + l.activation_group_spans < l.spans ? s + l.activation_group_spans : l.spans;
      __m512i integer = _mm512_setzero_si512();
      for (; s + 2 <= end; s += 2) {
        __m512i w[16];
        unpack_span<kCoding>(planes, s, table, w);
        unpack_span<kCoding>(planes, s + 1, table, w + 8);
        integer = _mm512_add_epi32(integer, dot<kTwo, 2>(w, job.planes + s * kRowBytes<kTwo>, kRowBytes<kTwo>));
      }
      if (s < end) {
        __m512i w[8];
        unpack_span<kCoding>(planes, s, table, w);
        integer = _mm512_add_epi32(integer, dot<kTwo, 1>(w, job.planes + s * kRowBytes<kTwo>, 0));
        ++s;
      }
      integer = placed<is_view(kCoding)>(integer, shift_of<kCoding>(l));
      partial = accumulate(partial, integer, zeros(base, weight_group), load_scales<kCoding>(l, base, weight_group),
                           job.sum + g, job.scale + g);
    }
    store(job, block, 0, partial);
  }
}

// A Tile is what a pass keeps per row of activations, in L1.
struct Tile {
  alignas(64) float partial[kMaxRows][kBlock];
  alignas(64) int32_t carry[kMaxRows][kBlock];  // a group's integers between its chunks of 64 columns
};

// Computes one chunk of 1 or 2 spans for `rows` rows; kFirst and kLast say whether it is the first and the last of
// its group.
template <bool kTwo, bool kView, int kSpans, bool kFirst, bool kLast>
FIDELIO_INLINE void chunk_rows(const __m512i* w, const int8_t* x, int64_t span_bytes, int64_t rows, const Group& group,
                               Tile& tile) {
  const __m512i zero = group.zero;
  const __m512 scale = group.scale;
  for (int64_t m = 0; m < rows; ++m) {
    __m512i integer = dot<kTwo, kSpans>(w, x + m * kRowBytes<kTwo>, span_bytes);
    if (!kFirst) integer = _mm512_add_epi32(integer, _mm512_load_si512(tile.carry[m]));
    if (kLast) {
      integer = placed<kView>(integer, group.shift);
      _mm512_store_ps(tile.partial[m], accumulate(_mm512_load_ps(tile.partial[m]), integer, zero, scale, group.sums + m,
                                                  group.scales + m));
    } else {
      _mm512_store_si512(tile.carry[m], integer);
    }
  }
}

// A group has at most 128 columns, i.e. two chunks, so a chunk is always the first or the last of its group. A chunk
// of one span ends its group.
template <bool kTwo, bool kView, int kSpans>
FIDELIO_INLINE void chunk(const __m512i* w, const int8_t* x, int64_t span_bytes, int64_t rows, const Group& group,
                          Tile& tile, bool first, bool last) {
  if (first && last) return chunk_rows<kTwo, kView, kSpans, true, true>(w, x, span_bytes, rows, group, tile);
  if constexpr (kSpans == 2)
    if (first) return chunk_rows<kTwo, kView, kSpans, true, false>(w, x, span_bytes, rows, group, tile);
  chunk_rows<kTwo, kView, kSpans, false, true>(w, x, span_bytes, rows, group, tile);
}

// Multiplies rows [m0, m0 + rows) of the batch, rows <= kMaxRows, by one block.
template <int kCoding, bool kTwo>
void multiply_tile(const Job& job, int64_t block, int64_t m0, int64_t rows, __m512i table,
                   const ZeroReader<kCoding>& zeros, Tile& tile) {
  const Layout& l = job.layout;
  const uint8_t* base = job.packed + l.front + block * l.block_bytes;
  const Planes<kCoding> planes(l, base);
  const int64_t span_bytes = job.rows * kRowBytes<kTwo>;
  const int8_t* x = job.planes + m0 * kRowBytes<kTwo>;
  for (int64_t m = 0; m < rows; ++m) _mm512_store_ps(tile.partial[m], _mm512_setzero_ps());
  for (int64_t g = 0, s = 0; g < l.activation_groups; ++g) {
    const int64_t weight_group = s / l.group_spans, begin = s;
    const int64_t end = s + l.activation_group_spans < l.spans ? s + l.activation_group_spans : l.spans;
    const Group group{zeros(base, weight_group), load_scales<kCoding>(l, base, weight_group),
                      job.sum + g * job.rows + m0, job.scale + g * job.rows + m0, shift_of<kCoding>(l)};
    for (; s + 2 <= end; s += 2) {
      __m512i w[16];
      unpack_span<kCoding>(planes, s, table, w);
      unpack_span<kCoding>(planes, s + 1, table, w + 8);
      chunk<kTwo, is_view(kCoding), 2>(w, x + s * span_bytes, span_bytes, rows, group, tile, s == begin, s + 2 == end);
    }
    if (s < end) {
      __m512i w[8];
      unpack_span<kCoding>(planes, s, table, w);
      chunk<kTwo, is_view(kCoding), 1>(w, x + s * span_bytes, span_bytes, rows, group, tile, s == begin, true);
      ++s;
    }
  }
  for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, _mm512_load_ps(tile.partial[m]));
}

// Loads the E4M3 values of 16 rows. An E4M3 value placed at the top of an FP32's fields has an exponent that is 120
// too small; one multiplication corrects that, also for subnormals.
FIDELIO_INLINE __m512 load_e4m3(const uint8_t* p) {
  const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f)),
                sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
  const __m512i bits =
      _mm512_mask_mov_epi32(_mm512_slli_epi32(magnitude, 20),
                            _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f)), _mm512_set1_epi32(0x7fc00000));
  return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(bits, sign)), _mm512_set1_ps(0x1p120f));
}

// These are the scales (halved, since the grid is 2 x E2M1) and the offsets of a half of a span.
struct HalfScales {
  __m512 scale, offset;
  HalfScales(const Layout& l, const uint8_t* base, int64_t group)
      : scale(_mm512_mul_ps(load_e4m3(base + l.scale_offset + 16 * group), _mm512_set1_ps(0.5f))),
        offset(l.has_zero ? load_e4m3(base + l.zero_offset + 16 * group) : _mm512_setzero_ps()) {}
};

// Returns `partial` plus the half of a span that begins at quad kQuad; `sum` is the sum of its activations.
template <bool kTwo, int kQuad>
FIDELIO_INLINE __m512 add_half(__m512 partial, const __m512i* w, const int8_t* x, const HalfScales& half, int32_t sum,
                               float scale) {
  Sums hi, lo;
  dot_quads<kTwo, kQuad, kQuad + 4>(w, x, hi, lo);
  const __m512i integer = kTwo ? _mm512_add_epi32(_mm512_slli_epi32(hi.total(), 7), lo.total()) : hi.total();
  partial = accumulate(partial, integer, _mm512_set1_epi32(128), half.scale, &sum, &scale);
  const __m512 all = _mm512_mul_ps(half.offset, _mm512_set1_ps(scale));
  return _mm512_fmadd_ps(all, _mm512_set1_ps(static_cast<float>(sum)), partial);
}

// In FP4 every half of a span has its own scale and offset.
template <bool kTwo>
void multiply_fp4_tile(const Job& job, int64_t block, int64_t m0, int64_t rows, __m512i table, Tile& tile) {
  const Layout& l = job.layout;
  const uint8_t* base = job.packed + l.front + block * l.block_bytes;
  const Planes<kFp4> planes(l, base);
  for (int64_t m = 0; m < rows; ++m) _mm512_store_ps(tile.partial[m], _mm512_setzero_ps());
  for (int64_t s = 0; s < l.spans; ++s) {
    __m512i w[8];
    unpack_span<kFp4>(planes, s, table, w);
    const HalfScales first(l, base, 2 * s), second(l, base, 2 * s + 1);
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t at = s * job.rows + m0 + m;
      const int8_t* x = job.planes + at * kRowBytes<kTwo>;
      const int32_t sum = job.half[at];
      __m512 partial = add_half<kTwo, 0>(_mm512_load_ps(tile.partial[m]), w, x, first, sum, job.scale[at]);
      partial = add_half<kTwo, 4>(partial, w, x, second, job.sum[at] - sum, job.scale[at]);
      _mm512_store_ps(tile.partial[m], partial);
    }
  }
  for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, _mm512_load_ps(tile.partial[m]));
}

template <int kCoding, bool kTwo>
void multiply(const Job& job) {
  if (kCoding != kFp4 && job.rows == 1) return multiply_one<kCoding, kTwo>(job);
  const __m512i table = load_table<kCoding>(job);
  const ZeroReader<kCoding> zeros(job.layout);
  Tile tile;
  for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows) {
    const int64_t rows = job.rows - m0 < kMaxRows ? job.rows - m0 : kMaxRows;
    for (int64_t block = job.first; block < job.last; ++block) {
      if constexpr (kCoding == kFp4) {
        multiply_fp4_tile<kTwo>(job, block, m0, rows, table, tile);
      } else {
        multiply_tile<kCoding, kTwo>(job, block, m0, rows, table, zeros, tile);
      }
    }
  }
}

template <int kRows>
void accumulate_f32(const float (*weights)[kBlock], const float* x, int64_t stride, int64_t columns,
                    float (*partial)[kBlock]) {
  __m512 sum[kRows];
  for (int m = 0; m < kRows; ++m) sum[m] = _mm512_load_ps(partial[m]);
  for (int64_t k = 0; k < columns; ++k) {
    const __m512 w = _mm512_load_ps(weights[k]);
    for (int m = 0; m < kRows; ++m) sum[m] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[m * stride + k]), sum[m]);
  }
  for (int m = 0; m < kRows; ++m) _mm512_store_ps(partial[m], sum[m]);
}

// Multiplies FP32 activations: a span of weights is decoded to FP32 and its columns are added in order, one FMA for
// each weight. This is meant for reference results, not for speed.
template <int kCoding>
void multiply_f32(const Job& job) {
  const Layout& l = job.layout;
  const __m512i table = load_table<kCoding>(job);
  const ZeroReader<kCoding> zeros(l);
  alignas(64) float partial[kMaxRows][kBlock], weights[kSpan][kBlock];
  for (int64_t block = job.first; block < job.last; ++block) {
    const uint8_t* base = job.packed + l.front + block * l.block_bytes;
    const Planes<kCoding> planes(l, base);
    const __m512 row_scale =
        l.scale == Scale::f16 ? _mm512_set1_ps(1) : _mm512_loadu_ps(reinterpret_cast<const float*>(base));
    for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows) {
      const int64_t rows = job.rows - m0 < kMaxRows ? job.rows - m0 : kMaxRows;
      std::memset(partial, 0, sizeof partial);
      for (int64_t s = 0; s < l.spans; ++s) {
        const int64_t group = s / l.group_spans;
        const __m512 scale = _mm512_mul_ps(row_scale, load_scales<kCoding>(l, base, group));
        const __m512i zero = zeros(base, group);
        __m512i w[8];
        unpack_span<kCoding>(planes, s, table, w);
        for (int k = 0; k < kSpan; ++k) {
          const __m512i code = _mm512_and_si512(_mm512_srli_epi32(w[k / 4], 8 * (k % 4)), _mm512_set1_epi32(0xff));
          const __m512i whole = placed<is_view(kCoding)>(code, shift_of<kCoding>(l));
          const __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(whole, zero));
          if constexpr (kCoding == kFp4) {
            const HalfScales half(l, base, 2 * s + k / kHalf);
            const __m512 plain = _mm512_add_ps(_mm512_mul_ps(half.scale, value), half.offset);
            _mm512_store_ps(weights[k], _mm512_mul_ps(row_scale, plain));
          } else {
            _mm512_store_ps(weights[k], _mm512_mul_ps(scale, value));
          }
        }
        const int64_t left = l.in - s * kSpan, columns = left < kSpan ? left : kSpan;
        // Eight rows are taken at a time, since their independent sums hide the latency of an FMA; each sums its
        // columns in order.
        const float* x = job.values + m0 * l.in + s * kSpan;
        int64_t m = 0;
        for (; m + 8 <= rows; m += 8) accumulate_f32<8>(weights, x + m * l.in, l.in, columns, &partial[m]);
        for (; m < rows; ++m) accumulate_f32<1>(weights, x + m * l.in, l.in, columns, &partial[m]);
      }
      for (int64_t m = 0; m < rows; ++m) {
        Job plain = job;
        plain.layout.scale = Scale::f16;  // the row scale is in the weights already
        store(plain, block, m0 + m, _mm512_load_ps(partial[m]));
      }
    }
  }
}

void prepare16(const PrepareJob& job) { prepare_rows<Split::two>(job); }
void prepare8(const PrepareJob& job) { prepare_rows<Split::one>(job); }

constexpr Kernels kernels() {
  Kernels all{};
  for_each_coding([&]<int kCoding>() {
    all.integer.a16[kCoding] = multiply<kCoding, true>;
    all.integer.a8[kCoding] = multiply<kCoding, false>;
    all.f32[kCoding] = multiply_f32<kCoding>;
  });
  all.prepare16 = prepare16, all.prepare8 = prepare8;
  all.merge[0] = merge_plane<2, 1, 1>, all.merge[1] = merge_plane<1, 1, 2>, all.merge[2] = merge_plane<1, 1, 0>;
  return all;
}

}  // namespace

constinit const Kernels kAvx512 = kernels();

}  // namespace fidelio::cpu::lowbit
