// This file multiplies vector codes with AVX2, by FP32 activations and by words (vector_rows.h).
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/vectors/vector_rows.h"

namespace fidelio::cpu::vectors {
namespace {

inline int nibble(const uint8_t* bytes, int64_t i) { return (bytes[i / 2] >> (4 * (i % 2))) & 15; }

inline __m256 widen(const int8_t* bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
}

// Negates entries by the signs in `bits`: each bit is shifted to the place of an FP32 sign. With 8 signs bit j is
// that of entry j; with 4 signs bit s is that of entries 2 s and 2 s + 1.
template <int kSigns>
inline __m256 negate(__m256 value, int bits) {
  const __m256i shift = kSigns == 8   ? _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24)
                        : kSigns == 4 ? _mm256_setr_epi32(31, 31, 30, 30, 29, 29, 28, 28)
                                      : _mm256_set1_epi32(31);
  const __m256i signs = _mm256_sllv_epi32(_mm256_set1_epi32(bits), shift);
  return _mm256_xor_ps(value, _mm256_and_ps(_mm256_castsi256_ps(signs), _mm256_set1_ps(-0.0f)));
}

template <int kSigns, bool kHigh>
inline __m256 decode(const Row& r, int64_t v) {
  int64_t index = r.index[v];
  int signs = 0;
  if constexpr (kHigh) {
    const int high = nibble(r.high, v);
    index |= static_cast<int64_t>(kSigns == 1 ? high & 7 : high) << 8;
    signs = high >> 3;
  }
  if constexpr (kSigns == 4) signs = nibble(r.sign, v);
  if constexpr (kSigns == 8) signs = r.sign[v];
  return negate<kSigns>(widen(r.book + index * kDim), signs);
}

inline float sum(__m256 a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

template <int kSigns, bool kHigh, int kRows>
void codes(const Job& job) {
  __m256 a[kRows], b[kRows];
  for (int m = 0; m < kRows; ++m) a[m] = b[m] = _mm256_setzero_ps();
  int64_t v = 0;
  for (; v + 1 < job.vectors; v += 2) {
    const __m256 first = decode<kSigns, kHigh>(job.row, v), second = decode<kSigns, kHigh>(job.row, v + 1);
    for (int m = 0; m < kRows; ++m) {
      const float* z = job.scaled + m * job.stride + v * kDim;
      a[m] = _mm256_fmadd_ps(first, _mm256_loadu_ps(z), a[m]);
      b[m] = _mm256_fmadd_ps(second, _mm256_loadu_ps(z + kDim), b[m]);
    }
  }
  if (v < job.vectors) {
    const __m256 last = decode<kSigns, kHigh>(job.row, v);
    for (int m = 0; m < kRows; ++m)
      a[m] = _mm256_fmadd_ps(last, _mm256_loadu_ps(job.scaled + m * job.stride + v * kDim), a[m]);
  }
  for (int m = 0; m < kRows; ++m) job.sums[m] = sum(_mm256_add_ps(a[m], b[m]));
}

// The functions from here on multiply words. A PairSigns holds what negates the bytes of two neighbouring vectors: 1,
// or -1 if a sign is set.
struct PairSigns {
  alignas(16) int8_t of[256][16];
};
// Returns the table indexed by a byte of two nibbles. With four signs a nibble has one for each pair of entries, with
// one sign it is the nibble's highest bit.
template <int kSigns>
constexpr PairSigns pair_signs() {
  PairSigns t{};
  for (int byte = 0; byte < 256; ++byte)
    for (int j = 0; j < 16; ++j) {
      const int nibble = byte >> (j / 8 * 4) & 15, bit = kSigns == 4 ? j % 8 / 2 : 3;
      t.of[byte][j] = nibble >> bit & 1 ? -1 : 1;
    }
  return t;
}
struct ByteSigns {
  alignas(16) int8_t of[256][8];
};
constexpr ByteSigns byte_signs() {
  ByteSigns t{};
  for (int byte = 0; byte < 256; ++byte)
    for (int j = 0; j < 8; ++j) t.of[byte][j] = byte >> j & 1 ? -1 : 1;
  return t;
}
constexpr PairSigns kOneSign = pair_signs<1>(), kFourSigns = pair_signs<4>();
constexpr ByteSigns kEightSigns = byte_signs();

inline __m128i two(const void* low, const void* high) {
  const __m128d first = _mm_load_sd(static_cast<const double*>(low));
  return _mm_castpd_si128(_mm_loadh_pd(first, static_cast<const double*>(high)));
}

// Returns the signs of vectors v and v + 1, v even; `last` means that there is no v + 1.
template <int kSigns>
inline __m128i signs_of(const Row& r, int64_t v, bool last) {
  if constexpr (kSigns == 8) return two(kEightSigns.of[r.sign[v]], kEightSigns.of[last ? 0 : r.sign[v + 1]]);
  const PairSigns& table = kSigns == 4 ? kFourSigns : kOneSign;
  return _mm_load_si128(reinterpret_cast<const __m128i*>(table.of[(kSigns == 4 ? r.sign : r.high)[v / 2]]));
}

// Writes where the centroids of 32 vectors begin, in bytes of the codebook: their index times 8. Reads 32 bytes of
// `index` and 16 of `high`.
template <int kSigns>
inline void offsets_of(const uint8_t* index, const uint8_t* high, uint16_t* to) {
  const __m128i nibbles = _mm_loadu_si128(reinterpret_cast<const __m128i*>(high));
  const __m128i mask = _mm_set1_epi8(kSigns == 1 ? 7 : 15);
  const __m128i even = _mm_and_si128(nibbles, mask), odd = _mm_and_si128(_mm_srli_epi16(nibbles, 4), mask);
  for (int half = 0; half < 2; ++half) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(index + 16 * half));
    const __m128i top = half == 0 ? _mm_unpacklo_epi8(even, odd) : _mm_unpackhi_epi8(even, odd);
    const __m256i whole = _mm256_or_si256(_mm256_cvtepu8_epi16(low), _mm256_slli_epi16(_mm256_cvtepu8_epi16(top), 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 16 * half), _mm256_slli_epi16(whole, 3));
  }
}

template <int kSigns, bool kHigh, int kRows>
struct WordSums {
  const Job& job;
  __m256i whole[kRows];

  // Adds vectors v and v + 1, whose centroids begin at a and b.
  void add(int64_t v, const int8_t* a, const int8_t* b, bool last) {
    const __m256i levels = _mm256_cvtepi8_epi16(_mm_sign_epi8(two(a, b), signs_of<kSigns>(job.row, v, last)));
    for (int m = 0; m < kRows; ++m) {
      const auto* x = reinterpret_cast<const __m256i*>(job.words + m * job.stride + v * kDim);
      whole[m] = _mm256_add_epi32(whole[m], _mm256_madd_epi16(levels, _mm256_loadu_si256(x)));
      asm("" : "+x"(whole[m]));  // added here, in order; otherwise g++ keeps many products and adds them later
    }
  }

  // Adds vectors [v, end) of a group. Whole runs of 32 have their offsets computed at once.
  void group(int64_t v, int64_t end) {
    const Row& r = job.row;
    if constexpr (kHigh) {
      uint16_t at[32];
      for (; v + 32 <= end; v += 32) {
        offsets_of<kSigns>(r.index + v, r.high + v / 2, at);
        for (int i = 0; i < 32; i += 2) add(v + i, r.book + at[i], r.book + at[i + 1], false);
      }
    } else {
      for (; v + 2 <= end; v += 2)
        add(v, r.book + int64_t{r.index[v]} * kDim, r.book + int64_t{r.index[v + 1]} * kDim, false);
    }
    for (; v < end; v += 2) {  // words after a row's last vector are zero, so any centroid will do there
      const bool last = v + 1 == end;
      add(v, centroid(v), last ? r.book : centroid(v + 1), last);
    }
  }
  const int8_t* centroid(int64_t v) const {
    const Row& r = job.row;
    int64_t index = r.index[v];
    if constexpr (kHigh) index |= int64_t{nibble(r.high, v) & (kSigns == 1 ? 7 : 15)} << 8;
    return r.book + index * kDim;
  }
};

template <int kSigns, bool kHigh, int kRows>
void word_sums(const Job& job) {
  __m256 sums[kRows];
  for (int m = 0; m < kRows; ++m) sums[m] = _mm256_setzero_ps();
  for (int64_t g = 0; g < job.groups; ++g) {
    WordSums<kSigns, kHigh, kRows> of{job, {}};
    for (int m = 0; m < kRows; ++m) of.whole[m] = _mm256_setzero_si256();
    const int64_t end = (g + 1) * kGroup;
    of.group(g * kGroup, end < job.vectors ? end : job.vectors);
    for (int m = 0; m < kRows; ++m)
      sums[m] =
          _mm256_fmadd_ps(_mm256_set1_ps(job.scale[m * job.groups + g]), _mm256_cvtepi32_ps(of.whole[m]), sums[m]);
  }
  for (int m = 0; m < kRows; ++m) job.sums[m] = sum(sums[m]);
}

template <int kSigns, bool kHigh, bool kWords>
void of_rows(const Job& job) {
  switch (job.rows) {
    case 1:
      return kWords ? word_sums<kSigns, kHigh, 1>(job) : codes<kSigns, kHigh, 1>(job);
    case 2:
      return kWords ? word_sums<kSigns, kHigh, 2>(job) : codes<kSigns, kHigh, 2>(job);
    case 3:
      return kWords ? word_sums<kSigns, kHigh, 3>(job) : codes<kSigns, kHigh, 3>(job);
    default:
      return kWords ? word_sums<kSigns, kHigh, 4>(job) : codes<kSigns, kHigh, 4>(job);
  }
}

template <bool kWords>
void of_format(const Job& job) {
  if (job.signs == 1)
    of_rows<1, true, kWords>(job);
  else if (job.signs == 4)
    job.row.high ? of_rows<4, true, kWords>(job) : of_rows<4, false, kWords>(job);
  else
    job.row.high ? of_rows<8, true, kWords>(job) : of_rows<8, false, kWords>(job);
  correct_avx2(job);
}

}  // namespace

void correct_avx2(const Job& job) {
  for (int64_t m = 0; m < job.rows; ++m) {
    __m256 a = _mm256_setzero_ps();
    for (int64_t i = 0; i < job.row.sparse; ++i) {
      const __m256 value =
          _mm256_mul_ps(widen(job.row.sparse_value + i * kDim), _mm256_set1_ps(job.row.sparse_scale[i]));
      a = _mm256_fmadd_ps(value, _mm256_loadu_ps(job.x + m * job.stride + job.row.sparse_index[i] * kDim), a);
    }
    job.corrections[m] = sum(a);
  }
}

void multiply_avx2(const Job& job) { of_format<false>(job); }
void multiply_words_avx2(const Job& job) { of_format<true>(job); }

}  // namespace fidelio::cpu::vectors
#endif
