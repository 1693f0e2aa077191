#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/vectors/vector_rows.h"

namespace fidelio::cpu::vectors {
namespace {

inline int nibble(const uint8_t* bytes, int64_t i) { return (bytes[i / 2] >> (4 * (i % 2))) & 15; }

inline __m256 widen(const int8_t* bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
}

// The sign that entry j has in `bits` becomes its FP32 sign: bit s of 4 is of entries 2 s and 2 s + 1.
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

void corrections(const Job& job) {
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

template <int kSigns, bool kHigh>
void of_rows(const Job& job) {
  switch (job.rows) {
    case 1:
      return codes<kSigns, kHigh, 1>(job);
    case 2:
      return codes<kSigns, kHigh, 2>(job);
    case 3:
      return codes<kSigns, kHigh, 3>(job);
    default:
      return codes<kSigns, kHigh, 4>(job);
  }
}

}  // namespace

void multiply_avx2(const Job& job) {
  if (job.signs == 1)
    of_rows<1, true>(job);
  else if (job.signs == 4)
    job.row.high ? of_rows<4, true>(job) : of_rows<4, false>(job);
  else
    job.row.high ? of_rows<8, true>(job) : of_rows<8, false>(job);
  corrections(job);
}

}  // namespace fidelio::cpu::vectors
#endif
