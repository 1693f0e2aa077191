// This file has what the AVX-512 and the AMX kernels of low-bit weights share: codes, scales and zeros of 16 output
// rows, and the scaling of a group's integers. It is included once per instruction set, with internal linkage.
#pragma once
// The compiler g++ 12 warns about the undefined operands inside its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/linear/lowbit_planes.h"

namespace fidelio::cpu::lowbit {
namespace {

FIDELIO_INLINE __m512i load(const uint8_t* p) { return _mm512_loadu_si512(p); }

// Returns mask ? a : b, bit by bit.
FIDELIO_INLINE __m512i select(int mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(mask)), a, b, 0xca);
}
template <int kShift>  // > 0: to the left
FIDELIO_INLINE __m512i shift(__m512i a) {
  if constexpr (kShift > 0) return _mm512_slli_epi16(a, kShift);
  if constexpr (kShift < 0) return _mm512_srli_epi16(a, -kShift);
  return a;
}
FIDELIO_INLINE __m512i mask(__m512i a, int m) { return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(m))); }

// Unpacks quads 2i and 2i+1 of a span, i = kPair; p points to the planes at this span. Shifts work on 16-bit lanes,
// and what they carry over from the neighbouring byte falls outside every mask. A grid's index may keep rubbish in
// its high bits, since the table repeats itself.
template <int kCoding, int kPair>
FIDELIO_INLINE void unpack_pair(const uint8_t* const* p, __m512i table, __m512i& a, __m512i& b) {
  constexpr int kBits = bits_of(kCoding), kHalf = kPair % 2;
  __m512i p4 = {}, p2 = {}, p1 = {};
  if constexpr (has_plane4(kBits)) p4 = load(p[0] + 64 * kPair);
  if constexpr (kBits == 2 || kBits == 3) p2 = load(p[0] + 64 * (kPair / 2));
  if constexpr (kBits == 6 || kBits == 7) p2 = load(p[1] + 64 * (kPair / 2));
  if constexpr (kBits == 3 || kBits == 5) p1 = shift<-kPair>(load(p[1]));
  if constexpr (kBits == 7) p1 = shift<-kPair>(load(p[2]));
  if constexpr (!is_grid(kCoding) && kBits == 2) {
    a = mask(shift<-2 * kHalf>(p2), 3), b = mask(shift<-2 * kHalf - 4>(p2), 3);
  } else if constexpr (!is_grid(kCoding) && kBits == 3) {
    const __m512i n = select(0x66, shift < kHalf ? -1 : 1 > (p2), p1);
    a = mask(n, 7), b = mask(shift<-4>(n), 7);
  } else if constexpr (!is_grid(kCoding) && kBits == 4) {
    a = mask(p4, 15), b = mask(shift<-4>(p4), 15);
  } else if constexpr (!is_grid(kCoding) && kBits == 5) {
    const __m512i low = mask(p1, 0x11);
    a = select(0x1e, shift<1>(p4), low), b = select(0x1e, shift<-3>(p4), shift<-4>(low));
  } else if constexpr (!is_grid(kCoding) && kBits == 6) {
    const __m512i low = mask(shift<-2 * kHalf>(p2), 0x33);
    a = select(0x3c, shift<2>(p4), low), b = select(0x3c, shift<-2>(p4), shift<-4>(low));
  } else if constexpr (kBits == 7) {
    const __m512i low = mask(select(0x66, shift < kHalf ? -1 : 1 > (p2), p1), 0x77);
    a = select(0x78, shift<3>(p4), low), b = select(0x78, shift<-1>(p4), shift<-4>(low));
  } else if constexpr (kBits == 8) {
    const __m512i low = load(p[1] + 64 * kPair);
    a = select(0xf0, shift<4>(p4), low), b = select(0xf0, p4, shift<-4>(low));
  } else if constexpr (kBits == 2) {
    a = _mm512_permutexvar_epi8(shift<-2 * kHalf>(p2), table);
    b = _mm512_permutexvar_epi8(shift<-2 * kHalf - 4>(p2), table);
  } else if constexpr (kBits == 3) {
    const __m512i n = select(0x66, shift < kHalf ? -1 : 1 > (p2), p1);
    a = _mm512_permutexvar_epi8(n, table), b = _mm512_permutexvar_epi8(shift<-4>(n), table);
  } else if constexpr (is_grid(kCoding) && kBits == 4) {
    a = _mm512_permutexvar_epi8(p4, table), b = _mm512_permutexvar_epi8(shift<-4>(p4), table);
  } else if constexpr (is_grid(kCoding) && kBits == 5) {
    a = _mm512_permutexvar_epi8(select(0x1e, shift<1>(p4), p1), table);
    b = _mm512_permutexvar_epi8(select(0x1e, shift<-3>(p4), shift<-4>(p1)), table);
  } else {
    const __m512i low = shift<-2 * kHalf>(p2);
    a = _mm512_permutexvar_epi8(select(0x3c, shift<2>(p4), low), table);
    b = _mm512_permutexvar_epi8(select(0x3c, shift<-2>(p4), shift<-4>(low)), table);
  }
}

template <int kCoding>
FIDELIO_INLINE void unpack_span(const Planes<kCoding>& planes, int64_t span, __m512i table, __m512i* w) {
  const uint8_t* const p[3] = {planes.at(0, span), planes.at(1, span), planes.at(2, span)};
  planes.prefetch(span);
  unpack_pair<kCoding, 0>(p, table, w[0], w[1]);
  unpack_pair<kCoding, 1>(p, table, w[2], w[3]);
  unpack_pair<kCoding, 2>(p, table, w[4], w[5]);
  unpack_pair<kCoding, 3>(p, table, w[6], w[7]);
}

// Returns the codebook, repeated over 64 bytes so that an index needs no masking.
template <int kCoding>
inline __m512i load_table(const Job& job) {
  if constexpr (is_grid(kCoding)) {
    alignas(64) uint8_t table[64];
    for (int i = 0; i < 64; ++i) table[i] = job.packed[job.layout.table + (i & ((1 << bits_of(kCoding)) - 1))];
    return load(table);
  }
  return _mm512_setzero_si512();
}

// Returns the scales of 16 rows. A view's integers are doubled (lowbit.h), so its scales are halved.
template <int kCoding>
FIDELIO_INLINE __m512 load_scales(const Layout& l, const uint8_t* block, int64_t group) {
  if constexpr (is_view(kCoding))
    return _mm512_mul_ps(load_scales<kCoding - kFirstView>(l, block, group), _mm512_set1_ps(0.5f));
  const uint8_t* p = block + l.scale_offset;
  if (l.scale == Scale::f16)
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * group)));
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * group));
  if (l.scale == Scale::e8m0) {  // the byte is FP32's exponent, but 0 stands for a subnormal; the grid is 2 x E2M1
    const __m512i power = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
    const __m512i held = _mm512_max_epi32(power, _mm512_set1_epi32(0x400000));
    return _mm512_mul_ps(_mm512_castsi512_ps(held), _mm512_set1_ps(0.5f));
  }
  return _mm512_cvtepi32_ps(l.scale == Scale::u8 ? _mm512_cvtepu8_epi32(bytes) : _mm512_cvtepi8_epi32(bytes));
}

// Reads the zeros of 16 rows as dwords: byte (r b) / 8 of their string and its neighbour are shifted down. Up to 16
// bytes are read, which is safe since the codes follow. The zero of a view is 2 zero - (2^d - 1). The constructor
// makes the tables once for each call of a kernel.
template <int kCoding>
struct ZeroReader {
  __m512i gather, down, keep;
  __m512i fixed, low;
  int64_t bytes, offset;
  bool stored;

  explicit ZeroReader(const Layout& l) {
    const int b = l.code_bits;
    stored = l.has_zero && kCoding != kFp4;
    offset = l.zero_offset;
    fixed = _mm512_set1_epi32(is_grid(kCoding) ? 128 : 1 << (b - 1));
    low = _mm512_set1_epi32((1 << (b - bits_of(kCoding))) - 1);
    keep = _mm512_set1_epi32((1 << b) - 1);
    bytes = 2 * b;
    alignas(64) int32_t at[16], by[16];
    for (int r = 0; r < 16; ++r) at[r] = (r * b / 8) | (r * b / 8 + 1) << 8, by[r] = r * b % 8;
    gather = _mm512_load_si512(at), down = _mm512_load_si512(by);
  }
  FIDELIO_INLINE __m512i operator()(const uint8_t* block, int64_t group) const {
    const __m512i zero = whole(block, group);
    return is_view(kCoding) ? _mm512_sub_epi32(_mm512_slli_epi32(zero, 1), low) : zero;
  }
  FIDELIO_INLINE __m512i whole(const uint8_t* block, int64_t group) const {
    if (!stored) return fixed;
    const __m512i string =
        _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + offset + bytes * group)));
    const __m512i pairs = _mm512_maskz_permutexvar_epi8(0x3333333333333333, gather, string);
    return _mm512_and_si512(_mm512_srlv_epi32(pairs, down), keep);
  }
};

template <bool kTwo>
constexpr int64_t kRowBytes = kTwo ? 2 * kSpan : kSpan;

FIDELIO_INLINE __m512i broadcast(const int8_t* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}

// Even and odd quads of a plane have accumulators of their own; otherwise the dot product's latency, not its rate,
// would bound a row.
struct Sums {
  __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
  FIDELIO_INLINE __m512i total() const { return _mm512_add_epi32(even, odd); }
};

// Recursion replaces a loop, so that indices are constants before the compiler decides whether w can live in
// registers.
template <bool kTwo, int kQuad, int kQuads>
FIDELIO_INLINE void dot_quads(const __m512i* w, const int8_t* x, Sums& hi, Sums& lo) {
  if constexpr (kQuad < kQuads) {
    __m512i& h = kQuad % 2 ? hi.odd : hi.even;
    __m512i& l = kQuad % 2 ? lo.odd : lo.even;
    h = _mm512_dpbusd_epi32(h, w[kQuad], broadcast(x + 4 * kQuad));
    if constexpr (kTwo) l = _mm512_dpbusd_epi32(l, w[kQuad], broadcast(x + kSpan + 4 * kQuad));
    dot_quads<kTwo, kQuad + 1, kQuads>(w, x, hi, lo);
  }
}

FIDELIO_INLINE __m512 accumulate(__m512 partial, __m512i integer, __m512i zero, __m512 weight_scale, const int32_t* sum,
                                 const float* scale) {
  const __m512i exact = _mm512_sub_epi32(integer, _mm512_mullo_epi32(zero, _mm512_set1_epi32(*sum)));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), _mm512_mul_ps(weight_scale, _mm512_set1_ps(*scale)), partial);
}

// Returns a group's integers as accumulate() takes them: those of a view are shifted by d + 1 bits.
template <bool kView>
FIDELIO_INLINE __m512i placed(__m512i integer, __m128i shift) {
  return kView ? _mm512_sll_epi32(integer, shift) : integer;
}
template <int kCoding>
FIDELIO_INLINE __m128i shift_of(const Layout& l) {
  return _mm_cvtsi32_si128(l.code_bits - bits_of(kCoding) + 1);
}

// Stores y[m, 16 rows of the block] = or += partial * row scale + bias.
inline void store(const Job& job, int64_t block, int64_t m, __m512 value) {
  const Layout& l = job.layout;
  const int64_t left = l.out - block * kBlock;
  const __mmask16 rows = static_cast<__mmask16>(left >= kBlock ? 0xffff : (1 << left) - 1);
  if (l.scale != Scale::f16)
    value = _mm512_mul_ps(
        value, _mm512_loadu_ps(reinterpret_cast<const float*>(job.packed + l.front + block * l.block_bytes)));
  if (job.bias) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(rows, job.bias + block * kBlock));
  float* y = job.y + m * job.y_stride + block * kBlock;
  if (job.add) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(rows, y));
  _mm512_mask_storeu_ps(y, rows, value);
}

struct Group {
  __m512i zero;
  __m512 scale;
  const int32_t* sums;  // of these rows
  const float* scales;
  __m128i shift;  // by d + 1 bits, for a view
};

}  // namespace
}  // namespace fidelio::cpu::lowbit
