// This file multiplies vector codes by words with AVX-512 (F BW VL VBMI VNNI). It gives the bits of vectors_avx2.cc,
// since integers are exact in any order and what is rounded is rounded in the order of vector_rows.h.
//
//   a group      indices that are not bytes of the row itself are unpacked to 16 bits, and signs to 8, one bit an
//                entry, 32 vectors at a time; both are left in memory
//   8 vectors    their centroids, 8 bytes each, are merged into registers as they are loaded, negated under a mask of
//                the signs, widened to twice 32 words, and added up by vpdpwssd
//
// A whole group is unpacked before its products begin: a load of 2 bytes that comes just after the store of the 64
// bytes that hold them waits for it. Gathers, which read 8 indices at once, were rejected: on a Xeon they gained 5%
// over this, on a Zen 5 they take twice its time (tables are in the report's results).
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)  // g++ 12 warns about the undefined operands inside its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/cpu/vectors/vector_rows.h"

namespace fidelio::cpu::vectors {
namespace {

constexpr int kRun = 32;  // vectors unpacked at once

template <typename T>
inline T read(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

// These are the codes of a run: in the row itself or, behind the row's last whole run, in a copy followed by zeros.
struct Codes {
  const uint8_t *index, *high, *sign;
};

struct Unpacked {
  alignas(64) uint16_t index[kRun];  // of codes with nibbles
  alignas(32) uint8_t signs[kRun];   // bit j negates entry j; unused with 8 signs, which lie so in the row
};

// A Spread spreads nibbles over 16-bit lanes: `byte` repeats each byte of nibbles for two lanes, and `down` is how
// far lane i is shifted down for nibble i to be in bits 8 to 11.
struct Spread {
  alignas(64) uint8_t byte[64];
  alignas(64) uint16_t down[32];
};
constexpr Spread spread() {
  Spread t{};
  for (int i = 0; i < 64; ++i) t.byte[i] = static_cast<uint8_t>(i / 4);
  for (int i = 0; i < 32; ++i) t.down[i] = static_cast<uint16_t>(4 * (i % 2));
  return t;
}
constexpr Spread kSpread = spread();
// This table has every bit of a nibble twice.
alignas(16) constexpr uint8_t kTwice[16] = {0x00, 0x03, 0x0c, 0x0f, 0x30, 0x33, 0x3c, 0x3f,
                                            0xc0, 0xc3, 0xcc, 0xcf, 0xf0, 0xf3, 0xfc, 0xff};

template <int kSigns, bool kHigh>
inline void unpack(const Codes& from, Unpacked& to) {
  if constexpr (kHigh) {
    const __m512i low = _mm512_cvtepu8_epi16(read<__m256i>(from.index));
    const __m512i pairs =
        _mm512_permutexvar_epi8(_mm512_load_si512(kSpread.byte), _mm512_castsi128_si512(read<__m128i>(from.high)));
    const __m512i nibbles = _mm512_srlv_epi16(pairs, _mm512_load_si512(kSpread.down));
    const __m512i mask = _mm512_set1_epi16(kSigns == 1 ? 0x0700 : 0x0f00);
    _mm512_store_si512(to.index, _mm512_ternarylogic_epi32(nibbles, mask, low, 0xea));  // (nibbles & mask) | low
    if constexpr (kSigns == 1) {
      const __mmask32 negative = _mm512_movepi16_mask(_mm512_slli_epi16(nibbles, 4));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to.signs), _mm256_movm_epi8(negative));
    }
  }
  if constexpr (kSigns == 4) {
    const __m256i bytes = _mm256_cvtepu8_epi16(read<__m128i>(from.sign));
    const __m256i nibbles = _mm256_and_si256(_mm256_or_si256(bytes, _mm256_slli_epi16(bytes, 4)), _mm256_set1_epi8(15));
    const __m256i table = _mm256_broadcastsi128_si256(read<__m128i>(kTwice));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to.signs), _mm256_shuffle_epi8(table, nibbles));
  }
  // The unpacked codes are read back from memory: compilers would take indices out of the register one by one, at two
  // operations each.
  asm volatile("" : "+m"(to));
}

// Levels are the signed words of 8 vectors.
struct Levels {
  __m512i of[2];
};
inline __m512i widen(__m256i bytes, const uint8_t* signs) {
  return _mm512_cvtepi8_epi16(_mm256_mask_sub_epi8(bytes, read<uint32_t>(signs), _mm256_setzero_si256(), bytes));
}
template <typename Index>
inline __m256i merge(const int8_t* book, const Index* index) {
  const auto centroid = [&](int i) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(book + int64_t{index[i]} * kDim));
  };
  const __m256i first = _mm256_mask_broadcastq_epi64(_mm256_broadcastq_epi64(centroid(0)), 0b1010, centroid(1));
  const __m256i second = _mm256_mask_broadcastq_epi64(_mm256_broadcastq_epi64(centroid(2)), 0b1010, centroid(3));
  return _mm256_mask_blend_epi64(0b1100, first, second);
}
template <typename Index>
inline Levels levels_of(const int8_t* book, const Index* index, const uint8_t* signs) {
  return {{widen(merge(book, index), signs), widen(merge(book, index + 4), signs + 4)}};
}

template <int kSigns, bool kHigh, int kRows>
struct WideSums {
  static constexpr int kSums = kRows == 1 ? 4 : 2;  // a single sum would wait for itself
  const Job& job;
  __m512i whole[kRows][kSums];

  // Adds the run of vectors from v on, `left` of them in the row; words are padded to whole fours of vectors.
  template <bool kAll>
  void run(const Codes& codes, const Unpacked& u, int64_t v, int64_t left) {
    const auto* index = [&] {
      if constexpr (kHigh)
        return static_cast<const uint16_t*>(u.index);
      else
        return codes.index;
    }();
    const uint8_t* signs = kSigns == 8 ? codes.sign : u.signs;
#pragma GCC unroll 4
    for (int i = 0; i < kRun; i += 8) {
      if (!kAll && i >= left) return;
      const Levels levels = levels_of(job.row.book, index + i, signs + i);
      for (int m = 0; m < kRows; ++m)
        for (int half = 0; half < 2; ++half) {
          const int16_t* x = job.words + m * job.stride + (v + i + 4 * half) * kDim;
          const __m512i words = kAll || left > i + 4 * half ? read<__m512i>(x) : _mm512_setzero_si512();
          __m512i& sum = whole[m][(i / 4 + half) % kSums];
          sum = _mm512_dpwssd_epi32(sum, levels.of[half], words);
        }
    }
  }

  // Adds vectors [v, end) of a group.
  void group(int64_t v, int64_t end) {
    constexpr bool kUnpacked = kHigh || kSigns == 4;
    Unpacked u[kGroup / kRun];
    const int64_t runs = (end - v) / kRun;
    if constexpr (kUnpacked)
      for (int64_t i = 0; i < runs; ++i) unpack<kSigns, kHigh>(codes_at(v + i * kRun), u[i]);
    for (int64_t i = 0; i < runs; ++i, v += kRun) run<true>(codes_at(v), u[i], v, kRun);
    if (v == end) return;
    const Row& r = job.row;
    uint8_t index[kRun] = {}, high[kRun / 2] = {}, sign[kRun] = {};
    const auto left = static_cast<size_t>(end - v), half = (left + 1) / 2;
    __builtin_memcpy(index, r.index + v, left);
    if constexpr (kHigh) __builtin_memcpy(high, r.high + v / 2, half);
    if constexpr (kSigns == 8) __builtin_memcpy(sign, r.sign + v, left);
    if constexpr (kSigns == 4) __builtin_memcpy(sign, r.sign + v / 2, half);
    const Codes last{index, high, sign};
    if constexpr (kUnpacked) unpack<kSigns, kHigh>(last, u[0]);
    run<false>(last, u[0], v, end - v);
  }
  Codes codes_at(int64_t v) const {
    const Row& r = job.row;
    const uint8_t* high = kHigh ? r.high + v / 2 : nullptr;
    return {r.index + v, high, kSigns == 8 ? r.sign + v : kSigns == 4 ? r.sign + v / 2 : nullptr};
  }

  __m256i total(int m) const {
    __m512i both = _mm512_add_epi32(whole[m][0], whole[m][1]);
    if constexpr (kSums == 4) both = _mm512_add_epi32(both, _mm512_add_epi32(whole[m][2], whole[m][3]));
    return _mm256_add_epi32(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1));
  }
};

inline float sum(__m256 a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

template <int kSigns, bool kHigh, int kRows>
void word_sums(const Job& job) {
  __m256 sums[kRows];
  for (int m = 0; m < kRows; ++m) sums[m] = _mm256_setzero_ps();
  for (int64_t g = 0; g < job.groups; ++g) {
    WideSums<kSigns, kHigh, kRows> of{job, {}};
    for (auto& row : of.whole)
      for (__m512i& whole : row) whole = _mm512_setzero_si512();
    const int64_t end = (g + 1) * kGroup;
    of.group(g * kGroup, end < job.vectors ? end : job.vectors);
    for (int m = 0; m < kRows; ++m)
      sums[m] =
          _mm256_fmadd_ps(_mm256_set1_ps(job.scale[m * job.groups + g]), _mm256_cvtepi32_ps(of.total(m)), sums[m]);
  }
  for (int m = 0; m < kRows; ++m) job.sums[m] = sum(sums[m]);
}

template <int kSigns, bool kHigh>
void of_rows(const Job& job) {
  switch (job.rows) {
    case 1:
      return word_sums<kSigns, kHigh, 1>(job);
    case 2:
      return word_sums<kSigns, kHigh, 2>(job);
    case 3:
      return word_sums<kSigns, kHigh, 3>(job);
    default:
      return word_sums<kSigns, kHigh, 4>(job);
  }
}

}  // namespace

void multiply_words_avx512(const Job& job) {
  if (job.signs == 1)
    of_rows<1, true>(job);
  else if (job.signs == 4)
    job.row.high ? of_rows<4, true>(job) : of_rows<4, false>(job);
  else
    job.row.high ? of_rows<8, true>(job) : of_rows<8, false>(job);
  correct_avx2(job);
}

}  // namespace fidelio::cpu::vectors
#endif
