// This file has what the AVX-512 and the AMX kernels of super-blocks share: d s and m t of 16 output rows, and how a
// group's integers are added. It is included once per instruction set, with internal linkage.
#pragma once
#include "kernels/cpu/linear/lowbit_avx512_body.h"
#include "kernels/cpu/super/super_kernels.h"

namespace fidelio::cpu::lowbit {
namespace {

FIDELIO_INLINE __m128i load_bytes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
FIDELIO_INLINE __m512 load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// These are d s and m t of a group.
struct Terms {
  __m512 scale, offset;
};
template <int kKind>
FIDELIO_INLINE Terms terms_of(const Layout& l, const uint8_t* base, int64_t group, __m512 d, __m512 m) {
  const __m128i bytes = load_bytes(base + kBlock * group);
  if constexpr (!has_minima(kKind))
    return {_mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))), _mm512_setzero_ps()};
  __m512i scale = _mm512_cvtepu8_epi32(bytes), minimum;
  if constexpr (has_nibbles(kKind)) {
    minimum = _mm512_srli_epi32(scale, 4);
    scale = _mm512_and_si512(scale, _mm512_set1_epi32(15));
  } else {
    minimum = _mm512_cvtepu8_epi32(load_bytes(base + l.zero_offset + kBlock * group));
  }
  return {_mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)), _mm512_mul_ps(m, _mm512_cvtepi32_ps(minimum))};
}

// A SpanTerms has the terms of the one group of a span, or of its two.
template <int kKind>
struct SpanTerms {
  Terms first, second;
  SpanTerms() = default;
  FIDELIO_INLINE SpanTerms(const SuperJob& super, const uint8_t* base, int64_t span, __m512 d, __m512 m)
      : first(terms_of<kKind>(super.job.layout, base, has_half_groups(kKind) ? 2 * span : span, d, m)),
        second(has_half_groups(kKind) ? terms_of<kKind>(super.job.layout, base, 2 * span + 1, d, m) : first) {}
};

// Returns `partial` plus a group whose codes . activations are `integer`; `sum` is the sum of its activations.
template <int kKind>
FIDELIO_INLINE __m512 close_group(__m512 partial, __m512i integer, const Terms& terms, int32_t sum, float scale) {
  if constexpr (!has_minima(kKind)) integer = _mm512_sub_epi32(integer, _mm512_set1_epi32(middle_of(kKind) * sum));
  partial = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integer), _mm512_mul_ps(terms.scale, _mm512_set1_ps(scale)), partial);
  if constexpr (has_minima(kKind))
    partial = _mm512_fnmadd_ps(terms.offset, _mm512_set1_ps(scale * static_cast<float>(sum)), partial);
  return partial;
}

}  // namespace
}  // namespace fidelio::cpu::lowbit
