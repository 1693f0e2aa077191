// This file has what the AVX2 kernels share: the unpacking of lowbit.h's layout in halves of 8 rows, scales and zero
// points, and products of codes and INT16 words. It has internal linkage and is included by lowbit_avx2.cc,
// lowbit_words_avx2.cc and super/super_avx2.cc.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/linear/lowbit_planes.h"

#define FIDELIO_UNROLL _Pragma("GCC unroll 16")

namespace fidelio::cpu::lowbit {
namespace {

FIDELIO_INLINE __m256i load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
FIDELIO_INLINE __m256i mask(__m256i a, int m) { return _mm256_and_si256(a, _mm256_set1_epi8(static_cast<char>(m))); }
template <int kShift>  // > 0: to the left
FIDELIO_INLINE __m256i shift(__m256i a) {
  if constexpr (kShift > 0) return _mm256_slli_epi16(a, kShift);
  if constexpr (kShift < 0) return _mm256_srli_epi16(a, -kShift);
  return a;
}
// Returns mask ? a : b, bit by bit.
FIDELIO_INLINE __m256i select(int m, __m256i a, __m256i b) {
  const __m256i bits = _mm256_set1_epi8(static_cast<char>(m));
  return _mm256_or_si256(_mm256_and_si256(bits, a), _mm256_andnot_si256(bits, b));
}

// A Table is the codebook, sixteen entries in each part, repeated if it is shorter: signed bytes, or those + 128.
template <int kCoding>
struct Table {
  static constexpr int kParts = !is_grid(kCoding) || bits_of(kCoding) <= 4 ? 1 : 1 << (bits_of(kCoding) - 4);
  __m256i part[kParts];
};
template <int kCoding, bool kSignedBytes>
Table<kCoding> load_table(const Job& job) {
  const uint8_t* packed = job.packed + job.layout.table;
  Table<kCoding> table{};
  if constexpr (is_grid(kCoding)) {
    for (int part = 0; part < Table<kCoding>::kParts; ++part) {
      alignas(16) uint8_t bytes[16];
      for (int i = 0; i < 16; ++i)
        bytes[i] = packed[(16 * part + i) & ((1 << bits_of(kCoding)) - 1)] ^ (kSignedBytes ? 0x80 : 0);
      table.part[part] = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
    }
  }
  return table;
}

// Returns what multiplies the activations: the code or the table's entry. A code of 8 bits becomes the code - 128 if
// bytes are signed.
template <int kCoding, bool kSignedBytes>
FIDELIO_INLINE __m256i finish(__m256i code, const Table<kCoding>& table) {
  if constexpr (is_grid(kCoding) && bits_of(kCoding) >= 5) {  // a byte's highest bit chooses; bits 4 and 5 become it
    const __m256i by4 = shift<3>(code);
    const auto pair = [&](int i) {
      return _mm256_blendv_epi8(_mm256_shuffle_epi8(table.part[i], code), _mm256_shuffle_epi8(table.part[i + 1], code),
                                by4);
    };
    if constexpr (bits_of(kCoding) == 5) return pair(0);
    if constexpr (bits_of(kCoding) == 6) return _mm256_blendv_epi8(pair(0), pair(2), shift<2>(code));
  }
  if constexpr (is_grid(kCoding)) return _mm256_shuffle_epi8(table.part[0], code);
  if constexpr (bits_of(kCoding) == 8 && kSignedBytes)
    return _mm256_xor_si256(code, _mm256_set1_epi8(static_cast<char>(0x80)));
  return code;
}

// Unpacks quads 2 kPair and 2 kPair + 1 of one half (8 rows) of a span; p points to the planes at this span and half.
template <int kCoding, int kPair, bool kSignedBytes>
FIDELIO_INLINE void unpack_pair(const uint8_t* const* p, const Table<kCoding>& table, __m256i& a, __m256i& b) {
  constexpr int kBits = bits_of(kCoding), kHalf = kPair % 2;
  __m256i p4 = {}, p2 = {}, p1 = {};
  if constexpr (has_plane4(kBits)) p4 = load(p[0] + 64 * kPair);
  if constexpr (kBits == 2 || kBits == 3) p2 = shift<-2 * kHalf>(load(p[0] + 64 * (kPair / 2)));
  if constexpr (kBits == 6 || kBits == 7) p2 = shift<-2 * kHalf>(load(p[1] + 64 * (kPair / 2)));
  if constexpr (kBits == 3 || kBits == 5) p1 = shift<-kPair>(load(p[1]));
  if constexpr (kBits == 7) p1 = shift<-kPair>(load(p[2]));
  if constexpr (kBits == 2) {
    a = mask(p2, 3), b = mask(shift<-4>(p2), 3);
  } else if constexpr (kBits == 3) {
    const __m256i n = select(0x66, shift<1>(p2), p1);
    a = mask(n, 7), b = mask(shift<-4>(n), 7);
  } else if constexpr (kBits == 4) {
    a = mask(p4, 15), b = mask(shift<-4>(p4), 15);
  } else if constexpr (kBits == 5) {
    const __m256i low = mask(p1, 0x11);
    a = select(0x1e, shift<1>(p4), low), b = select(0x1e, shift<-3>(p4), shift<-4>(low));
  } else if constexpr (kBits == 6) {
    const __m256i low = mask(p2, 0x33);
    a = select(0x3c, shift<2>(p4), low), b = select(0x3c, shift<-2>(p4), shift<-4>(low));
  } else if constexpr (kBits == 7) {
    const __m256i low = mask(select(0x66, shift<1>(p2), p1), 0x77);
    a = select(0x78, shift<3>(p4), low), b = select(0x78, shift<-1>(p4), shift<-4>(low));
  } else {
    const __m256i low = load(p[1] + 64 * kPair);
    a = select(0xf0, shift<4>(p4), low), b = select(0xf0, p4, shift<-4>(low));
  }
  a = finish<kCoding, kSignedBytes>(a, table);
  b = finish<kCoding, kSignedBytes>(b, table);
}

// Returns the scales of 8 rows. A view's integers are doubled (lowbit.h), so its scales are halved.
template <int kCoding>
FIDELIO_INLINE __m256 scales_of(const Layout& l, const uint8_t* base, int64_t group, int half) {
  if constexpr (is_view(kCoding))
    return _mm256_mul_ps(scales_of<kCoding - kFirstView>(l, base, group, half), _mm256_set1_ps(0.5f));
  const int64_t at = group * kBlock + 8 * half;
  const uint8_t* p = base + l.scale_offset;
  if (l.scale == Scale::f16) return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2 * at)));
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + at));
  if (l.scale == Scale::e8m0) {  // the byte is FP32's exponent, but 0 stands for a subnormal; the grid is 2 x E2M1
    const __m256i power = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
    const __m256i held = _mm256_max_epi32(power, _mm256_set1_epi32(0x400000));
    return _mm256_mul_ps(_mm256_castsi256_ps(held), _mm256_set1_ps(0.5f));
  }
  return _mm256_cvtepi32_ps(l.scale == Scale::u8 ? _mm256_cvtepu8_epi32(bytes) : _mm256_cvtepi8_epi32(bytes));
}

// Reads the zeros of 8 rows as dwords, less 128 if codes are unpacked to signed bytes. Byte (r b) / 8 of their string
// and its neighbour are shifted down. Up to 16 bytes are read, which is safe since the codes follow. The zero of a
// view is 2 zero - (2^d - 1).
template <int kCoding, bool kSignedBytes>
struct ZeroReader {
  __m256i gather, down, keep, offset, low;
  const uint8_t* base;
  int bits;

  ZeroReader(const Layout& l, const uint8_t* block) : bits(l.code_bits) {
    base = l.has_zero && kCoding != kFp4 ? block + l.zero_offset : nullptr;
    const int minus = kSignedBytes ? 128 : 0, fixed = is_grid(kCoding) ? 128 : 1 << (bits - 1);
    offset = _mm256_set1_epi32(base ? minus : minus - fixed);
    low = _mm256_set1_epi32((1 << (bits - bits_of(kCoding))) - 1);
    keep = _mm256_set1_epi32((1 << bits) - 1);
    alignas(32) uint32_t at[8], by[8];
    for (int r = 0; r < 8; ++r)
      at[r] = static_cast<uint32_t>(r * bits / 8) | static_cast<uint32_t>(r * bits / 8 + 1) << 8 | 0x80800000u;
    for (int r = 0; r < 8; ++r) by[r] = static_cast<uint32_t>(r * bits % 8);
    gather = _mm256_load_si256(reinterpret_cast<const __m256i*>(at)),
    down = _mm256_load_si256(reinterpret_cast<const __m256i*>(by));
  }
  __m256i operator()(int64_t group, int half) const {
    const __m256i zero = whole(group, half);
    return is_view(kCoding) ? _mm256_sub_epi32(_mm256_slli_epi32(zero, 1), low) : zero;
  }
  FIDELIO_INLINE __m256i whole(int64_t group, int half) const {
    if (!base) return _mm256_sub_epi32(_mm256_setzero_si256(), offset);
    const __m128i string = _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + (2 * group + half) * bits));
    const __m256i pairs = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(string), gather);
    return _mm256_sub_epi32(_mm256_and_si256(_mm256_srlv_epi32(pairs, down), keep), offset);
  }
};

FIDELIO_INLINE __m256i broadcast(const int8_t* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return _mm256_set1_epi32(x);
}

constexpr int64_t kWordBytes = 2 * kSpan;  // a row of activations in a span

// Adds codes . x of quads 2 kPair and 2 kPair + 1 to sums[m].
template <int kCoding, int kPair, int kRows>
FIDELIO_INLINE void add_pair(const uint8_t* const* at, const Table<kCoding>& table, const int8_t* x,
                             __m256i (&sums)[kRows]) {
  __m256i a, b;
  unpack_pair<kCoding, kPair, false>(at, table, a, b);
  const __m256i even = _mm256_set1_epi16(0x00ff);
  const __m256i w[4] = {_mm256_and_si256(a, even), _mm256_srli_epi16(a, 8), _mm256_and_si256(b, even),
                        _mm256_srli_epi16(b, 8)};
  FIDELIO_UNROLL for (int m = 0; m < kRows; ++m) {
    FIDELIO_UNROLL for (int i = 0; i < 4; ++i) {
      const __m256i pairs = _mm256_madd_epi16(w[i], broadcast(x + kWordBytes * m + 16 * kPair + 4 * i));
      sums[m] = _mm256_add_epi32(sums[m], pairs);
      // The sum is made here and not later: g++ is free to add integers in another order, and would keep 64 products
      // on the stack to do so.
      asm("" : "+x"(sums[m]));
    }
  }
}

// Returns a group's integers as close_group() takes them.
template <int kCoding>
FIDELIO_INLINE __m256i placed(const Layout& l, __m256i integer) {
  return is_view(kCoding) ? _mm256_sll_epi32(integer, _mm_cvtsi32_si128(l.code_bits - bits_of(kCoding) + 1)) : integer;
}

// Computes partial (kRows, kBlock) += x (kRows, columns), rows `stride` apart, times the weights of a span. Twelve
// sums that do not wait for each other hide the latency of an FMA; each adds its columns in order.
template <int kRows>
void accumulate_f32(const float (&weights)[kSpan][kBlock], const float* x, int64_t stride, int64_t columns,
                    float (*partial)[kBlock]) {
  __m256 sums[kRows][2];
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) sums[m][0] = _mm256_load_ps(partial[m]), sums[m][1] = _mm256_load_ps(partial[m] + 8);
  for (int64_t k = 0; k < columns; ++k) {
    const __m256 first = _mm256_load_ps(weights[k]), second = _mm256_load_ps(weights[k] + 8);
#pragma GCC unroll 6
    for (int m = 0; m < kRows; ++m) {
      const __m256 v = _mm256_broadcast_ss(x + m * stride + k);
      sums[m][0] = _mm256_fmadd_ps(first, v, sums[m][0]);
      sums[m][1] = _mm256_fmadd_ps(second, v, sums[m][1]);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) _mm256_store_ps(partial[m], sums[m][0]), _mm256_store_ps(partial[m] + 8, sums[m][1]);
}

// Stores y[m, 16 rows of the block] = or += partial * row scale (if the weights lack it) + bias.
void store(const Job& job, int64_t block, int64_t m, const float* partial, bool scale_rows) {
  const int64_t left = job.layout.out - block * kBlock;
  const uint8_t* base = job.packed + job.layout.front + block * job.layout.block_bytes;
  float* y = job.y + m * job.y_stride + block * kBlock;
  for (int64_t r = 0; r < (left < kBlock ? left : kBlock); ++r) {
    float value = partial[r], row_scale;
    if (scale_rows) std::memcpy(&row_scale, base + 4 * r, 4), value *= row_scale;
    if (job.bias) value += job.bias[block * kBlock + r];
    y[r] = job.add ? y[r] + value : value;
  }
}

}  // namespace
}  // namespace fidelio::cpu::lowbit
