// This file decides which of the tokens that a rule keeps is chosen (choice.h). Every backend gets the same bits, by
// the means of choice_arithmetic.h.
//
// The choice among kept tokens is a race. Token i arrives at time e_i 2^t_i, where e_i is exponentially distributed
// and made from the choice's random number and i alone. The first token to arrive is chosen, so token i is chosen
// with probability 2^-t_i over the sum. This is the Gumbel trick, with times instead of their logarithms. Two rows
// that share the random number share every e_i, so a draft and its verifier agree with probability EAR / (2 - EAR) at
// least (Daliri, Musco and Suresh, Coupling without Communication and Drafter-Invariant Speculative Decoding, 2024).
// A simpler way is to lay the weights end to end and pick one place. It agreed in .67 of the cases where EAR was .85,
// because a small change early in the row moves the places of all tokens that follow.
//
//   x = bits of the random number and i   k = its upper 31, j = 23 others
//   v = (k + (j + 1/2) / 2^23) / 2^31     uniform in (0, 1); a float's precision at both ends, down to 2^-55
//   e = -log2(1 - v)                      relative error below 2^-20
#pragma once
#include "step/choice_arithmetic.h"

namespace fidelio::choice {

// OneLane converts between floats (F) and unsigned integers (U). Here F and U are single numbers; backends supply
// vectors with the same functions.
struct OneLane {
  using F = float;
  using U = uint32_t;
  FIDELIO_ANYWHERE F to_float(U x) { return static_cast<float>(static_cast<int32_t>(x)); }  // x must be below 2^31
  FIDELIO_ANYWHERE U words(F x) { return word_of(x); }
  FIDELIO_ANYWHERE F floats(U x) { return float_of(x); }
  FIDELIO_ANYWHERE F where_zero(U x, F yes, F no) { return x == 0 ? yes : no; }
};

template <class U>
struct RandomWords {
  U coarse, fine;  // 31 and 23 bits
};
// Returns random words from two rounds of a multiplicative hash. Each round mixes in one half of the random number.
template <class U>
FIDELIO_ANYWHERE RandomWords<U> random_words(U id, uint64_t random) {
  const uint32_t low = static_cast<uint32_t>(random), high = static_cast<uint32_t>(random >> 32);
  U x = (id * 0x9e3779b1u) ^ low;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = x ^ (x >> 15);
  const U fine = ((x ^ high) * 0x9e3779b1u) >> 9;
  x = (x + high) * 0x846ca68bu;
  return {(x ^ (x >> 16)) >> 1, fine};
}

// Returns -log2(1 + f) / f for f in [-1/3, 1/3], by a minimax polynomial of degree 8 for the relative error, which is
// below 5e-8 before rounding.
template <class F>
FIDELIO_ANYWHERE F log_quotient(F f) {
  F q = f * -0x1.9f4eb6p-3f + 0x1.c71be4p-3f;
  q = q * f + -0x1.9d48dep-3f;
  q = q * f + 0x1.e4f056p-3f;
  q = q * f + -0x1.27a3f2p-2f;
  q = q * f + 0x1.7172d2p-2f;
  q = q * f + -0x1.ec6ffep-2f;
  q = q * f + 0x1.715456p-1f;
  return q * f + -0x1.715476p+0f;
}

// Returns e for the random words. It writes 1 - v = 2^n m with m in [2/3, 4/3), so that log2(m), or log2(1 - v)
// itself close to v = 0, has full relative precision.
template <class Lanes>
FIDELIO_ANYWHERE typename Lanes::F exponential(RandomWords<typename Lanes::U> words) {
  using F = typename Lanes::F;
  using U = typename Lanes::U;
  constexpr uint32_t kTwoThirds = 0x3f2aaaab;
  const U coarse = words.coarse, rest = 0x7fffffffu - coarse;
  const F part = (Lanes::to_float(words.fine) + 0.5f) * 0x1p-23f;
  const F v = (Lanes::to_float(coarse) + part) * 0x1p-31f, u = (Lanes::to_float(rest) + (1.0f - part)) * 0x1p-31f;
  const U shifted = Lanes::words(u) - kTwoThirds;
  const U halvings = (0u - (shifted >> 23)) & 0x1ffu;  // -n
  const F m = Lanes::floats((shifted & 0x7fffffu) + kTwoThirds);
  const F f = Lanes::where_zero(halvings, 0.0f - v, m - 1.0f);
  return Lanes::to_float(halvings) + f * log_quotient(f);
}

// A token more than this many halvings below the best has weight 0 and does not run.
constexpr float kLastStarter = kWeightBits;

// Returns the time at which a token arrives that is at most kLastStarter halvings below the best. It is positive and
// finite.
FIDELIO_ANYWHERE float arrival(int32_t id, uint64_t random, float t) {
  const int32_t halvings = static_cast<int32_t>(t);
  const float power = power_of_half(1.0f - (t - static_cast<float>(halvings)));  // 2^(t - halvings) / 2
  return exponential<OneLane>(random_words(static_cast<uint32_t>(id), random)) *
         (power * float_of(static_cast<uint32_t>(halvings + 128) << 23));
}
// Returns a number that is smaller for an earlier arrival. At equal times it is smaller for the lower id.
FIDELIO_ANYWHERE uint64_t finish_of(float time, int32_t id) {
  return static_cast<uint64_t>(word_of(time)) << 32 | static_cast<uint32_t>(id);
}

}  // namespace fidelio::choice
