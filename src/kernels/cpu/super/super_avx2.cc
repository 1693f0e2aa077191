// This file multiplies packed super-blocks with AVX2, FMA and F16C. Activations are INT16 words, as in
// linear/lowbit_words_avx2.cc; those of 8 bits are widened to words, a span at a time. Up to eight rows of activations
// keep their sums in registers while 8 output rows of a span pass.
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/linear/lowbit_avx2.h"
#include "kernels/cpu/super/super_kernels.h"

namespace fidelio::cpu::lowbit {
namespace {

constexpr int kTileRows = 8;

FIDELIO_INLINE __m256 load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// These are d s and m t of a group for 8 output rows.
struct Terms {
  __m256 scale, offset;
};
template <int kKind>
FIDELIO_INLINE Terms terms_of(const SuperJob& super, const uint8_t* base, int64_t span, int64_t group, int half) {
  const int64_t at = group * kBlock + 8 * half, of = (span / super.super_spans * kBlock + 8 * half) * 2;
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(base + at));
  const __m256 d = load_halves(base + super.super_offset + of);
  if constexpr (!has_minima(kKind))
    return {_mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))), _mm256_setzero_ps()};
  __m256i scale = _mm256_cvtepu8_epi32(bytes), minimum;
  if constexpr (has_nibbles(kKind)) {
    minimum = _mm256_srli_epi32(scale, 4);
    scale = _mm256_and_si256(scale, _mm256_set1_epi32(15));
  } else {
    minimum = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(base + super.job.layout.zero_offset + at)));
  }
  const __m256 m = load_halves(base + super.minimum_offset + of);
  return {_mm256_mul_ps(d, _mm256_cvtepi32_ps(scale)), _mm256_mul_ps(m, _mm256_cvtepi32_ps(minimum))};
}

// Widens a row's 32 integers of 8 bits to words, columns of a quad in the order 0 2 1 3.
FIDELIO_INLINE void widen(const int8_t* x, int8_t* words) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  for (int part = 0; part < 2; ++part) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + 16 * part)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(words + 32 * part), _mm256_shuffle_epi8(wide, order));
  }
}

// Adds a group's integers, scaled, to the partial sums. kPart is 0 for a whole span, 1 and 2 for its halves.
template <int kKind, int kPart, int kRows>
FIDELIO_INLINE void close_group(const Job& job, const Terms& terms, int64_t at, int half,
                                const __m256i (&integers)[kRows], float (*partial)[kBlock]) {
  FIDELIO_UNROLL for (int m = 0; m < kRows; ++m) {
    const int32_t sum = kPart == 0   ? job.sum[at + m]
                        : kPart == 1 ? job.half[at + m]
                                     : job.sum[at + m] - job.half[at + m];
    const float scale = job.scale[at + m];
    __m256i integer = integers[m];
    if constexpr (!has_minima(kKind)) integer = _mm256_sub_epi32(integer, _mm256_set1_epi32(middle_of(kKind) * sum));
    float* p = partial[m] + 8 * half;
    __m256 value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integer), _mm256_mul_ps(terms.scale, _mm256_set1_ps(scale)),
                                   _mm256_load_ps(p));
    if constexpr (has_minima(kKind))
      value = _mm256_fnmadd_ps(terms.offset, _mm256_set1_ps(scale * static_cast<float>(sum)), value);
    _mm256_store_ps(p, value);
  }
}

template <int kRows>
FIDELIO_INLINE void clear(__m256i (&sums)[kRows]) {
  FIDELIO_UNROLL for (int m = 0; m < kRows; ++m) sums[m] = _mm256_setzero_si256();
}

// Multiplies rows [m0, m0 + kRows) by one block. kWords says whether activations are words already.
template <int kKind, bool kWords, int kRows>
void multiply_tile(const SuperJob& super, int64_t block, int64_t m0, const Table<coding_of_super(kKind)>& table) {
  constexpr int kCoding = coding_of_super(kKind);
  const Job& job = super.job;
  const Layout& l = job.layout;
  const uint8_t* base = job.packed + l.front + block * l.block_bytes;
  const Planes<kCoding> planes(l, base);
  alignas(32) float partial[kRows][kBlock] = {};
  alignas(32) int8_t words[kWords ? 1 : kRows][kWordBytes];
  for (int64_t s = 0; s < l.spans; ++s) {
    planes.prefetch(s);
    const int64_t at = s * job.rows + m0;
    if constexpr (!kWords)
      for (int m = 0; m < kRows; ++m) widen(job.planes + (at + m) * kSpan, words[m]);
    const int8_t* x = kWords ? job.planes + at * kWordBytes : words[0];
    for (int half = 0; half < 2; ++half) {
      const uint8_t* const p[3] = {planes.at(0, s) + 32 * half, planes.at(1, s) + 32 * half,
                                   planes.at(2, s) + 32 * half};
      __m256i sums[kRows];
      clear(sums);
      add_pair<kCoding, 0>(p, table, x, sums);
      add_pair<kCoding, 1>(p, table, x, sums);
      if constexpr (has_half_groups(kKind)) {
        close_group<kKind, 1>(job, terms_of<kKind>(super, base, s, 2 * s, half), at, half, sums, partial);
        clear(sums);
      }
      add_pair<kCoding, 2>(p, table, x, sums);
      add_pair<kCoding, 3>(p, table, x, sums);
      if constexpr (has_half_groups(kKind))
        close_group<kKind, 2>(job, terms_of<kKind>(super, base, s, 2 * s + 1, half), at, half, sums, partial);
      else
        close_group<kKind, 0>(job, terms_of<kKind>(super, base, s, s, half), at, half, sums, partial);
    }
  }
  for (int m = 0; m < kRows; ++m) store(job, block, m0 + m, partial[m], false);
}

template <int kKind, bool kWords>
void multiply(const SuperJob& super) {
  constexpr int kCoding = coding_of_super(kKind);
  using Of = void (*)(const SuperJob&, int64_t, int64_t, const Table<kCoding>&);
  constexpr Of kTiles[kTileRows + 1] = {nullptr,
                                        multiply_tile<kKind, kWords, 1>,
                                        multiply_tile<kKind, kWords, 2>,
                                        multiply_tile<kKind, kWords, 3>,
                                        multiply_tile<kKind, kWords, 4>,
                                        multiply_tile<kKind, kWords, 5>,
                                        multiply_tile<kKind, kWords, 6>,
                                        multiply_tile<kKind, kWords, 7>,
                                        multiply_tile<kKind, kWords, 8>};
  const Job& job = super.job;
  const Table<kCoding> table = load_table<kCoding, false>(job);
  for (int64_t block = job.first; block < job.last; ++block)
    for (int64_t m = 0; m < job.rows; m += kTileRows)
      kTiles[job.rows - m < kTileRows ? job.rows - m : kTileRows](super, block, m, table);
}

// Decodes 8 output rows of a span to FP32.
template <int kKind>
FIDELIO_INLINE void decode_half(const SuperJob& super, const uint8_t* base,
                                const Planes<coding_of_super(kKind)>& planes,
                                const Table<coding_of_super(kKind)>& table, int64_t s, int half,
                                float (&weights)[kSpan][kBlock]) {
  constexpr int kCoding = coding_of_super(kKind), kGroups = has_half_groups(kKind) ? 2 : 1;
  const uint8_t* const p[3] = {planes.at(0, s) + 32 * half, planes.at(1, s) + 32 * half, planes.at(2, s) + 32 * half};
  __m256i quads[8];
  unpack_pair<kCoding, 0, false>(p, table, quads[0], quads[1]);
  unpack_pair<kCoding, 1, false>(p, table, quads[2], quads[3]);
  unpack_pair<kCoding, 2, false>(p, table, quads[4], quads[5]);
  unpack_pair<kCoding, 3, false>(p, table, quads[6], quads[7]);
  for (int c = 0; c < kSpan; ++c) {
    const Terms terms = terms_of<kKind>(super, base, s, s * kGroups + c * kGroups / kSpan, half);
    const __m256i up = _mm256_srl_epi32(quads[c / 4], _mm_cvtsi32_si128(8 * (c % 4)));
    const int middle = has_minima(kKind) ? 0 : middle_of(kKind);
    const __m256 value =
        _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(up, _mm256_set1_epi32(0xff)), _mm256_set1_epi32(middle)));
    __m256 weight = _mm256_mul_ps(terms.scale, value);
    if constexpr (has_minima(kKind)) weight = _mm256_sub_ps(weight, terms.offset);
    _mm256_store_ps(weights[c] + 8 * half, weight);
  }
}

// Multiplies FP32 activations: a span is decoded and its columns are added in order.
template <int kKind>
void multiply_f32(const SuperJob& super) {
  constexpr int kCoding = coding_of_super(kKind);
  const Job& job = super.job;
  const Layout& l = job.layout;
  const Table<kCoding> table = load_table<kCoding, false>(job);
  alignas(64) float weights[kSpan][kBlock], partial[kMaxRows][kBlock];
  for (int64_t block = job.first; block < job.last; ++block) {
    const uint8_t* base = job.packed + l.front + block * l.block_bytes;
    const Planes<kCoding> planes(l, base);
    for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows) {
      const int64_t rows = job.rows - m0 < kMaxRows ? job.rows - m0 : kMaxRows;
      std::memset(partial, 0, sizeof partial);
      for (int64_t s = 0; s < l.spans; ++s) {
        planes.prefetch(s);
        for (int half = 0; half < 2; ++half) decode_half<kKind>(super, base, planes, table, s, half, weights);
        const int64_t left = l.in - s * kSpan, columns = left < kSpan ? left : kSpan;
        const float* x = job.values + m0 * l.in + s * kSpan;
        int64_t m = 0;
        for (; m + 6 <= rows; m += 6) accumulate_f32<6>(weights, x + m * l.in, l.in, columns, &partial[m]);
        for (; m < rows; ++m) accumulate_f32<1>(weights, x + m * l.in, l.in, columns, &partial[m]);
      }
      for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, partial[m], false);
    }
  }
}

constexpr SuperKernels kernels() {
  SuperKernels all{};
  for_each_super([&]<int kKind>() {
    all.a16[kKind] = multiply<kKind, true>;
    all.a8[kKind] = multiply<kKind, false>;
    all.f32[kKind] = multiply_f32<kKind>;
  });
  return all;
}

}  // namespace

constinit const SuperKernels kSuperAvx2 = kernels();

}  // namespace fidelio::cpu::lowbit
