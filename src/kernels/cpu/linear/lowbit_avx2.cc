// This file multiplies low-bit weights with AVX2, FMA and F16C. It reads the packed layout of lowbit.h in halves of 8
// rows, and serves activations of 8 bits, FP4 weights and FP32 activations; activations of 16 bits are in
// lowbit_words_avx2.cc.
//
// AVX2 has no exact u8 x s8 dot product: vpmaddubsw adds two products in a saturating INT16. The codes are fed so
// that it cannot saturate, which makes it exact, and as many sums as fit are kept in INT16 before they are widened:
//
//                                                             quads before widening
//     codes of b <= 4 bits    15 * 127 * 2 * 8 = 30480        8
//              5 bits         31 * 127 * 2 * 4 = 31496        4
//              6 bits         63 * 127 * 2 * 2 = 32004        2
//              7 bits        127 * 127 * 2     = 32258        1
//     8 bits and grids       128 * 127 * 2     = 32512        1
//
// Codes of 8 bits and of grids are taken as a signed byte w, the code - 128, and |w| is multiplied by sign(w) x. A
// span of weights is unpacked once into L1 and meets every row of the batch there.
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/linear/lowbit_avx2.h"
#include "kernels/cpu/linear/lowbit_merge.h"
#include "kernels/cpu/linear/lowbit_prepare.h"

namespace fidelio::cpu::lowbit {
namespace {

constexpr int kQuads = kSpan / 4;

using Codes = uint8_t[kQuads][64];

template <int kCoding>
constexpr bool kSigned = is_grid(kCoding) || bits_of(kCoding) == 8;
template <int kCoding>
constexpr int kRun = kSigned<kCoding>        ? 1
                     : bits_of(kCoding) <= 4 ? 8
                     : bits_of(kCoding) == 5 ? 4
                     : bits_of(kCoding) == 6 ? 2
                                             : 1;

template <int kCoding, int kPair>
FIDELIO_INLINE void store_pair(const uint8_t* const* at, const Table<kCoding>& table, int half, Codes& codes) {
  __m256i a, b;
  unpack_pair<kCoding, kPair, kSigned<kCoding>>(at, table, a, b);
  _mm256_store_si256(reinterpret_cast<__m256i*>(codes[2 * kPair] + half), a);
  _mm256_store_si256(reinterpret_cast<__m256i*>(codes[2 * kPair + 1] + half), b);
}

template <int kCoding>
void unpack_span(const Planes<kCoding>& planes, int64_t span, const Table<kCoding>& table, Codes& codes) {
  planes.prefetch(span);
  for (int half = 0; half < 64; half += 32) {
    const uint8_t* const at[3] = {planes.at(0, span) + half, planes.at(1, span) + half, planes.at(2, span) + half};
    store_pair<kCoding, 0>(at, table, half, codes);
    store_pair<kCoding, 1>(at, table, half, codes);
    store_pair<kCoding, 2>(at, table, half, codes);
    store_pair<kCoding, 3>(at, table, half, codes);
  }
}

// Adds codes . x of quads [kFirst, kLast) of one span and one plane to sums[half], exactly.
template <int kCoding, int kFirst = 0, int kLast = kQuads>
FIDELIO_INLINE void dot_plane(const Codes& codes, const int8_t* x, __m256i (&sums)[2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (int q = kFirst; q < kLast; q += kRun<kCoding>) {
    __m256i narrow[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int i = q; i < q + kRun<kCoding>; ++i) {
      const __m256i v = broadcast(x + 4 * i);
      for (int half = 0; half < 2; ++half) {
        const __m256i w = load(codes[i] + 32 * half);
        const __m256i pairs = kSigned<kCoding> ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(v, w))
                                               : _mm256_maddubs_epi16(w, v);
        narrow[half] = kRun<kCoding> == 1 ? pairs : _mm256_add_epi16(narrow[half], pairs);
      }
    }
    for (int half = 0; half < 2; ++half) {
      sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(narrow[half], ones));
      asm("" : "+x"(sums[half]));  // adds in this order; otherwise g++ keeps all products of a span and adds them later
    }
  }
}

struct Tile {
  alignas(32) float partial[kMaxRows][kBlock];
  alignas(32) int32_t integer[kMaxRows][kBlock];
};

// Turns a group's integers into FP32: partial += (s_w s_x) float(integer - zero sum).
template <int kCoding>
void close_group(const Job& job, const uint8_t* base, int64_t group, int64_t weight_group, int64_t m0, int64_t rows,
                 const ZeroReader<kCoding, kSigned<kCoding>>& zeros, Tile& tile) {
  for (int half = 0; half < 2; ++half) {
    const __m256 scale = scales_of<kCoding>(job.layout, base, weight_group, half);
    const __m256i zero = zeros(weight_group, half);
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t at = group * job.rows + m0 + m;
      auto* integer = reinterpret_cast<__m256i*>(tile.integer[m] + 8 * half);
      float* partial = tile.partial[m] + 8 * half;
      const __m256i exact = _mm256_sub_epi32(placed<kCoding>(job.layout, _mm256_load_si256(integer)),
                                             _mm256_mullo_epi32(zero, _mm256_set1_epi32(job.sum[at])));
      const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(job.scale[at]));
      _mm256_store_ps(partial, _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), factor, _mm256_load_ps(partial)));
      _mm256_store_si256(integer, _mm256_setzero_si256());
    }
  }
}

template <int kCoding>
void multiply_tile(const Job& job, int64_t block, int64_t m0, int64_t rows, const Table<kCoding>& table, Tile& tile) {
  const Layout& l = job.layout;
  const uint8_t* base = job.packed + l.front + block * l.block_bytes;
  const Planes<kCoding> planes(l, base);
  const ZeroReader<kCoding, kSigned<kCoding>> zeros(l, base);
  alignas(64) Codes codes;
  std::memset(tile.partial, 0, static_cast<size_t>(rows) * sizeof tile.partial[0]);
  std::memset(tile.integer, 0, static_cast<size_t>(rows) * sizeof tile.integer[0]);
  for (int64_t g = 0, s = 0; g < l.activation_groups; ++g) {
    const int64_t weight_group = s / l.group_spans;
    const int64_t end = s + l.activation_group_spans < l.spans ? s + l.activation_group_spans : l.spans;
    for (; s < end; ++s) {
      unpack_span<kCoding>(planes, s, table, codes);
      for (int64_t m = 0; m < rows; ++m) {
        __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        dot_plane<kCoding>(codes, job.planes + (s * job.rows + m0 + m) * kSpan, sums);
        for (int half = 0; half < 2; ++half) {
          auto* integer = reinterpret_cast<__m256i*>(tile.integer[m] + 8 * half);
          _mm256_store_si256(integer, _mm256_add_epi32(_mm256_load_si256(integer), sums[half]));
        }
      }
    }
    close_group(job, base, g, weight_group, m0, rows, zeros, tile);
  }
  for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, tile.partial[m], l.scale != Scale::f16);
}

// Loads the E4M3 values of 8 rows. An E4M3 value placed at the top of an FP32's fields has an exponent that is 120
// too small; one multiplication corrects that, also for subnormals.
FIDELIO_INLINE __m256 load_e4m3(const uint8_t* p) {
  const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i top = _mm256_set1_epi32(0x7f), magnitude = _mm256_and_si256(code, top),
                sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
  const __m256i bits = _mm256_blendv_epi8(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(0x7fc00000),
                                          _mm256_cmpeq_epi32(magnitude, top));
  return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(bits, sign)), _mm256_set1_ps(0x1p120f));
}

// These are the scale (halved, since the grid is 2 x E2M1) and the offset of 8 rows in a half of a span.
struct HalfScales {
  __m256 scale, offset;
  HalfScales(const Layout& l, const uint8_t* base, int64_t group, int rows)
      : scale(_mm256_mul_ps(load_e4m3(base + l.scale_offset + group * kBlock + 8 * rows), _mm256_set1_ps(0.5f))),
        offset(l.has_zero ? load_e4m3(base + l.zero_offset + group * kBlock + 8 * rows) : _mm256_setzero_ps()) {}
};

// Adds the half of a span that begins at quad kFirst to `partial`; `sum` is the sum of its activations. The codes are
// signed, so there is no zero to subtract.
template <bool kTwo, int kFirst>
void add_half(const Codes& codes, const int8_t* x, const HalfScales (&scales)[2], int32_t sum, float scale,
              float* partial) {
  __m256i hi[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, lo[2] = {hi[0], hi[0]};
  dot_plane<kFp4, kFirst, kFirst + 4>(codes, x, hi);
  if constexpr (kTwo) dot_plane<kFp4, kFirst, kFirst + 4>(codes, x + kSpan, lo);
  const __m256 step = _mm256_set1_ps(scale), total = _mm256_set1_ps(static_cast<float>(sum));
  for (int rows = 0; rows < 2; ++rows) {
    const __m256i integer = kTwo ? _mm256_add_epi32(_mm256_slli_epi32(hi[rows], 7), lo[rows]) : hi[rows];
    __m256 p = _mm256_load_ps(partial + 8 * rows);
    p = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integer), _mm256_mul_ps(scales[rows].scale, step), p);
    p = _mm256_fmadd_ps(total, _mm256_mul_ps(scales[rows].offset, step), p);
    _mm256_store_ps(partial + 8 * rows, p);
  }
}

// In FP4 every half of a span has its own scale and offset.
template <bool kTwo>
void multiply_fp4_tile(const Job& job, int64_t block, int64_t m0, int64_t rows, const Table<kFp4>& table, Tile& tile) {
  const Layout& l = job.layout;
  const uint8_t* base = job.packed + l.front + block * l.block_bytes;
  const Planes<kFp4> planes(l, base);
  alignas(64) Codes codes;
  std::memset(tile.partial, 0, static_cast<size_t>(rows) * sizeof tile.partial[0]);
  for (int64_t s = 0; s < l.spans; ++s) {
    unpack_span<kFp4>(planes, s, table, codes);
    const HalfScales first[2] = {{l, base, 2 * s, 0}, {l, base, 2 * s, 1}},
                     second[2] = {{l, base, 2 * s + 1, 0}, {l, base, 2 * s + 1, 1}};
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t at = s * job.rows + m0 + m;
      const int8_t* x = job.planes + at * (kTwo ? 2 * kSpan : kSpan);
      const int32_t sum = job.half[at];
      add_half<kTwo, 0>(codes, x, first, sum, job.scale[at], tile.partial[m]);
      add_half<kTwo, 4>(codes, x, second, job.sum[at] - sum, job.scale[at], tile.partial[m]);
    }
  }
  for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, tile.partial[m], true);
}

// Calls of(block, first row, rows) for all blocks, for kMaxRows rows at a time.
template <typename Of>
void for_each_tile(const Job& job, const Of& of) {
  for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows) {
    const int64_t rows = job.rows - m0 < kMaxRows ? job.rows - m0 : kMaxRows;
    for (int64_t block = job.first; block < job.last; ++block) of(block, m0, rows);
  }
}

template <int kCoding>
void multiply(const Job& job) {
  const Table<kCoding> table = load_table<kCoding, kSigned<kCoding>>(job);
  Tile tile;
  for_each_tile(
      job, [&](int64_t block, int64_t m0, int64_t rows) { multiply_tile<kCoding>(job, block, m0, rows, table, tile); });
}

template <bool kTwo>
void multiply_fp4(const Job& job) {
  const Table<kFp4> table = load_table<kFp4, kSigned<kFp4>>(job);
  Tile tile;
  for_each_tile(job, [&](int64_t block, int64_t m0, int64_t rows) {
    multiply_fp4_tile<kTwo>(job, block, m0, rows, table, tile);
  });
}

// Multiplies FP32 activations: a span of weights is decoded to FP32 and its columns are added in order, one FMA for
// each weight. Compression measures with this.
template <int kCoding>
void multiply_f32(const Job& job) {
  const Layout& l = job.layout;
  const Table<kCoding> table = load_table<kCoding, kSigned<kCoding>>(job);
  alignas(64) Codes codes;
  alignas(64) float weights[kSpan][kBlock];
  Tile tile;
  for (int64_t block = job.first; block < job.last; ++block) {
    const uint8_t* base = job.packed + l.front + block * l.block_bytes;
    const Planes<kCoding> planes(l, base);
    const ZeroReader<kCoding, kSigned<kCoding>> zeros(l, base);
    for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows) {
      const int64_t rows = job.rows - m0 < kMaxRows ? job.rows - m0 : kMaxRows;
      std::memset(tile.partial, 0, sizeof tile.partial);
      for (int64_t s = 0; s < l.spans; ++s) {
        unpack_span<kCoding>(planes, s, table, codes);
        for (int half = 0; half < 2; ++half) {
          __m256 scale = scales_of<kCoding>(l, base, s / l.group_spans, half);
          const __m256 row_scale = l.scale == Scale::f16
                                       ? _mm256_set1_ps(1)
                                       : _mm256_loadu_ps(reinterpret_cast<const float*>(base) + 8 * half);
          scale = _mm256_mul_ps(row_scale, scale);
          const __m256i zero = zeros(s / l.group_spans, half);
          for (int k = 0; k < kSpan; ++k) {  // sign-extends byte k % 4 of every dword if codes are signed
            const __m256i up = _mm256_sll_epi32(load(codes[k / 4] + 32 * half), _mm_cvtsi32_si128(24 - 8 * (k % 4)));
            const __m256i code = kSigned<kCoding> ? _mm256_srai_epi32(up, 24) : _mm256_srli_epi32(up, 24);
            const __m256 value = _mm256_cvtepi32_ps(_mm256_sub_epi32(placed<kCoding>(l, code), zero));
            if constexpr (kCoding == kFp4) {
              const HalfScales h(l, base, 2 * s + k / kHalf, half);
              const __m256 plain = _mm256_add_ps(_mm256_mul_ps(h.scale, value), h.offset);
              _mm256_store_ps(weights[k] + 8 * half, _mm256_mul_ps(row_scale, plain));
            } else {
              _mm256_store_ps(weights[k] + 8 * half, _mm256_mul_ps(scale, value));
            }
          }
        }
        const int64_t left = l.in - s * kSpan, columns = left < kSpan ? left : kSpan;
        const float* x = job.values + m0 * l.in + s * kSpan;
        int64_t m = 0;
        for (; m + 6 <= rows; m += 6) accumulate_f32<6>(weights, x + m * l.in, l.in, columns, &tile.partial[m]);
        for (; m < rows; ++m) accumulate_f32<1>(weights, x + m * l.in, l.in, columns, &tile.partial[m]);
      }
      for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, tile.partial[m], false);
    }
  }
}

void prepare16(const PrepareJob& job) { prepare_rows<Split::two>(job); }
void prepare8(const PrepareJob& job) { prepare_rows<Split::one>(job); }
void prepare_words(const PrepareJob& job) { prepare_rows<Split::words>(job); }

constexpr Kernels kernels() {
  Kernels all{};
  for_each_coding([&]<int kCoding>() {
    all.integer.a8[kCoding] = multiply<kCoding>;
    all.f32[kCoding] = multiply_f32<kCoding>;
  });
  all.integer.a16[kFp4] = multiply_fp4<true>, all.integer.a8[kFp4] = multiply_fp4<false>;
  all.prepare16 = prepare16, all.prepare8 = prepare8, all.prepare_words = prepare_words;
  all.merge[0] = merge_plane<2, 1, 1>, all.merge[1] = merge_plane<1, 1, 2>, all.merge[2] = merge_plane<1, 1, 0>;
  return all;
}

}  // namespace

constinit const Kernels kAvx2 = kernels();

}  // namespace fidelio::cpu::lowbit
