// This file multiplies packed super-blocks with AVX-512, as linear/lowbit_avx512.cc does plain integers: 16 output rows
// are the lanes of a register, and a span of weights is unpacked once and meets every row of activations. A row alone
// takes the same steps in the same order, so its bits do not depend on the batch.
#include "kernels/cpu/super/super_avx512_body.h"

namespace fidelio::cpu::lowbit {
namespace {

// Returns `partial` plus the group of quads [kFirst, kLast); `sum` is the sum of its activations.
template <int kKind, bool kTwo, int kFirst, int kLast>
FIDELIO_INLINE __m512 add_group(__m512 partial, const __m512i* w, const int8_t* x, const Terms& terms, int32_t sum,
                                float scale) {
  Sums hi, lo;
  dot_quads<kTwo, kFirst, kLast>(w, x, hi, lo);
  const __m512i integer = kTwo ? _mm512_add_epi32(_mm512_slli_epi32(hi.total(), 7), lo.total()) : hi.total();
  return close_group<kKind>(partial, integer, terms, sum, scale);
}

// Returns `partial` plus a span; `at` is the place of the row and the span among the activations' scales and sums.
template <int kKind, bool kTwo>
FIDELIO_INLINE __m512 add_span(__m512 partial, const Job& job, const __m512i* w, const SpanTerms<kKind>& terms,
                               int64_t at) {
  const int8_t* x = job.planes + at * kRowBytes<kTwo>;
  const float scale = job.scale[at];
  if constexpr (!has_half_groups(kKind))
    return add_group<kKind, kTwo, 0, 8>(partial, w, x, terms.first, job.sum[at], scale);
  const int32_t half = job.half[at];
  partial = add_group<kKind, kTwo, 0, 4>(partial, w, x, terms.first, half, scale);
  return add_group<kKind, kTwo, 4, 8>(partial, w, x, terms.second, job.sum[at] - half, scale);
}

// Calls of(span, codes, terms) for the spans of a block in order.
template <int kKind, typename Of>
FIDELIO_INLINE void for_each_span(const SuperJob& super, int64_t block, __m512i table, const Of& of) {
  constexpr int kCoding = coding_of_super(kKind);
  const Layout& l = super.job.layout;
  const uint8_t* base = super.job.packed + l.front + block * l.block_bytes;
  const Planes<kCoding> planes(l, base);
  for (int64_t s = 0, u = 0; s < l.spans; ++u) {
    const __m512 d = load_halves(base + super.super_offset + 2 * kBlock * u);
    const __m512 m =
        has_minima(kKind) ? load_halves(base + super.minimum_offset + 2 * kBlock * u) : _mm512_setzero_ps();
    const int64_t end = s + super.super_spans < l.spans ? s + super.super_spans : l.spans;
    for (; s < end; ++s) {
      __m512i w[8];
      unpack_span<kCoding>(planes, s, table, w);
      of(s, w, SpanTerms<kKind>(super, base, s, d, m));
    }
  }
}

template <int kKind, bool kTwo>
void multiply(const SuperJob& super) {
  const Job& job = super.job;
  const __m512i table = load_table<coding_of_super(kKind)>(job);
  if (job.rows == 1) {
    for (int64_t block = job.first; block < job.last; ++block) {
      __m512 partial = _mm512_setzero_ps();
      for_each_span<kKind>(
          super, block,
          table, [&](int64_t s, const __m512i* w, const SpanTerms<kKind>& terms) __attribute__((always_inline)) {
            partial = add_span<kKind, kTwo>(partial, job, w, terms, s);
          });
      store(job, block, 0, partial);
    }
    return;
  }
  alignas(64) float partial[kMaxRows][kBlock];
  for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows) {
    const int64_t rows = job.rows - m0 < kMaxRows ? job.rows - m0 : kMaxRows;
    for (int64_t block = job.first; block < job.last; ++block) {
      for (int64_t m = 0; m < rows; ++m) _mm512_store_ps(partial[m], _mm512_setzero_ps());
      for_each_span<kKind>(
          super, block,
          table, [&](int64_t s, const __m512i* w, const SpanTerms<kKind>& terms) __attribute__((always_inline)) {
            for (int64_t m = 0; m < rows; ++m)
              _mm512_store_ps(partial[m],
                              add_span<kKind, kTwo>(_mm512_load_ps(partial[m]), job, w, terms, s * job.rows + m0 + m));
          });
      for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, _mm512_load_ps(partial[m]));
    }
  }
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

constinit const SuperKernels kSuperAvx512 = kernels();

}  // namespace fidelio::cpu::lowbit
