// This file defines one vector of floats, of the width that the including file is compiled for, with the few
// operations that the kernels need. Everything here has internal linkage. The arithmetic is GCC's vector extension,
// which clang shares. Intrinsics stand only where the extension has no operation.
#pragma once
#include <cstddef>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

// GCC 12's own AVX-512 headers cause these warnings wherever an unmasked intrinsic is inlined (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#if defined(__clang__)
#define FIDELIO_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FIDELIO_UNROLL _Pragma("GCC unroll 64")
#endif

namespace fidelio::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
typedef float V __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));

inline V load(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, V v) { __builtin_memcpy(p, &v, sizeof v); }
inline U load_words(const void* p) {
  U v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

#if defined(__AVX512F__)
inline V splat(float x) { return _mm512_set1_ps(x); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V max(V a, V b) { return _mm512_max_ps(a, b); }
inline V load_halves(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
inline uint16_t round_to_half(float x) { return _cvtss_sh(x, 0); }
inline U load_shorts(const void* p) {
  return (U)_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline U load_bytes(const void* p) { return (U)_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
#elif defined(__AVX2__)
inline V splat(float x) { return _mm256_set1_ps(x); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V max(V a, V b) { return _mm256_max_ps(a, b); }
inline V load_halves(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
inline uint16_t round_to_half(float x) { return _cvtss_sh(x, 0); }
inline U load_shorts(const void* p) {
  return (U)_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline U load_bytes(const void* p) { return (U)_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))); }
#else
inline V splat(float x) { return V{} + x; }
inline V fma(V a, V b, V c) { return a * b + c; }
inline V max(V a, V b) { return a > b ? a : b; }
template <typename T>
inline U widen(const void* p) {
  T v[W];
  __builtin_memcpy(v, p, sizeof v);
  U wide{};
  for (int i = 0; i < W; ++i) wide[i] = v[i];
  return wide;
}
inline U load_shorts(const void* p) { return widen<uint16_t>(p); }
inline U load_bytes(const void* p) { return widen<uint8_t>(p); }
// Converts FP16 by integer arithmetic. A multiplication moves the exponent, which also normalises subnormals.
// Infinities and NaN get their exponent back by a select.
inline V load_halves(const void* p) {
  const U h = load_shorts(p), magnitude = (h & 0x7fff) << 13, sign = (h & 0x8000) << 16;
  const U scaled = (U)((V)magnitude * 0x1p112f);
  return (V)(((h & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : scaled) | sign);
}
inline uint16_t round_to_half(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  const uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more become infinity
  if (magnitude <
      0x38800000u) {  // below 2^-14, adding 1/2 leaves the subnormal in the low bits, rounded to nearest even
    float small;
    __builtin_memcpy(&small, &magnitude, sizeof small);
    small += 0.5f;
    __builtin_memcpy(&u, &small, sizeof u);
    return static_cast<uint16_t>(sign | (u - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000u) >> 13));
}
#endif

inline V to_float(U v) { return __builtin_convertvector((I)v, V); }
inline V load_bf16(const void* p) { return (V)(load_shorts(p) << 16); }
inline uint16_t round_to_bf16(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

// These reduce across lanes in one fixed order (halves, then quarters, ...).
#if defined(__AVX512F__)
inline float sum_lanes(V v) { return _mm512_reduce_add_ps(v); }
inline float max_lanes(V v) { return _mm512_reduce_max_ps(v); }
#else
inline float sum_lanes(V v) {
  float x[W];
  store(x, v);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  return x[0];
}
inline float max_lanes(V v) {
  float x[W];
  store(x, v);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
  return x[0];
}
#endif

// Returns e^x to 2 ulp where the result is normal; below -87.3 it is 0, and x is clamped above 88. x = n ln 2 + r
// with |r| <= ln 2 / 2, where ln 2 has two parts (Cody and Waite). e^r is the minimax polynomial of Cephes' expf
// (Moshier 1984).
inline V exp(V x) {
  const V top = splat(88.0f), bottom = splat(-87.3f);
  const V clamped = max(x < top ? x : top, bottom);
  const V magic = splat(12582912.0f);  // this is 1.5 * 2^23; adding it rounds to the nearest integer
  const V shifted = fma(clamped, splat(1.44269504088896341f), magic);
  const V n = shifted - magic;
  const V r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clamped));
  V p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.0f);
  const V power = (V)(((I)shifted - 0x4b400000 + 127) << 23);
  return x < bottom ? V{} : p * power;
}

}  // namespace
}  // namespace fidelio::cpu
