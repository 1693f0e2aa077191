// The arithmetic by which a token is chosen from a row of logits (choice.h), written so that every backend gets the
// same bits from the same logits, whatever the width of its vectors and the order of its sums: single IEEE operations
// in FP32, never fused, up to a token's weight; integers from there on.
//
//   t  = (top - x) scale        scale = log2(e) / temperature: halvings below the best logit, >= 0, monotone in x
//   w  = floor(2^-t 2^40)       an integer, so that sums of weights are exact in any order; its relative error is below
//                               3 t 2^-24 + 2^-22 down to 2^-16 and 2^-40 absolute below
//
// Plain inline functions with internal linkage: device code and files compiled for one instruction set include this
// page.
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define FIDELIO_ANYWHERE static __host__ __device__ __forceinline__
#else
#define FIDELIO_ANYWHERE static inline
#endif

namespace fidelio::choice {

constexpr int kWeightBits = 40;  // the best token has weight 2^40; 2^18 such weights are far below 2^64
constexpr int kMantissaBits = 24;
constexpr float kNaturalScale = 0x1.715476p+0f;  // log2(e), the scale of temperature 1
constexpr float kFarthest = 63;                  // a token this many halvings or more below the best has weight 0

// Returns 2^-f for f in [0, 1), as 1 + f q(f). q is a minimax polynomial of degree 5 for the relative error, which is
// below 2.1e-9 before rounding.
template <class F>  // F is float or a vector of floats
FIDELIO_ANYWHERE F power_of_half(F f) {
  F q = f * 0x1.c946d2p-14f + -0x1.4e2aeap-10f;
  q = q * f + 0x1.39e3fcp-7f;
  q = q * f + -0x1.c6948ep-5f;
  q = q * f + 0x1.ebfac0p-3f;
  q = q * f + -0x1.62e42cp-1f;
  return q * f + 1.0f;
}

FIDELIO_ANYWHERE uint32_t word_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}
FIDELIO_ANYWHERE float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

// Returns the halvings below the best logit. They are infinite for -infinity, since scales are positive.
FIDELIO_ANYWHERE float distance(float top, float x, float scale) { return (top - x) * scale; }

// Returns the weight of a token t halvings below the best.
FIDELIO_ANYWHERE uint64_t weight_at(float t) {
  const float bounded = t < kFarthest ? t : kFarthest;
  const int32_t halvings = static_cast<int32_t>(bounded);
  const float power = power_of_half(bounded - static_cast<float>(halvings));
  const uint32_t mantissa = static_cast<uint32_t>(static_cast<int32_t>(power * 0x1p24f));
  return (static_cast<uint64_t>(mantissa) << (kWeightBits - kMantissaBits)) >> halvings;
}

// Returns an integer that orders logits as their values do. Both zeros give the same integer.
FIDELIO_ANYWHERE uint32_t key_of(float x) {
  const uint32_t bits = word_of(x + 0.0f);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}
// Returns a rank, which is larger for a better token. Among equal logits the lower id is better.
FIDELIO_ANYWHERE uint64_t rank_of(float x, int32_t id) {
  return static_cast<uint64_t>(key_of(x)) << 32 | static_cast<uint32_t>(~id);
}
FIDELIO_ANYWHERE int32_t id_of(uint64_t rank) { return static_cast<int32_t>(~static_cast<uint32_t>(rank)); }

// Returns the least weight that is at least p of the whole, and at least 1.
FIDELIO_ANYWHERE uint64_t part_of(double p, uint64_t whole) {
  const double wanted = p * static_cast<double>(whole);
  uint64_t part = static_cast<uint64_t>(wanted);
  if (static_cast<double>(part) < wanted) ++part;
  return part < 1 ? 1 : part > whole ? whole : part;
}

// Returns a logit after penalties and bias (choice.h, LogitChange). Each operation is rounded by itself.
FIDELIO_ANYWHERE float changed(float x, bool repeated, double repetition, float less, float more) {
  if (repeated) {
    const double wide = static_cast<double>(x);
    x = static_cast<float>(x > 0 ? wide / repetition : wide * repetition);
  }
  x = x - less;
  return x + more;
}

}  // namespace fidelio::choice
