// This file has the vector loops that choose a token; it is compiled once per instruction set.
#pragma once
#include <algorithm>

#include "kernels/cpu/choice/choose_kernels.h"
#include "kernels/cpu/simd.h"
#include "step/choice_race.h"

namespace fidelio::cpu {
namespace {

// Two vectors of 64-bit integers hold the even and the odd lanes of one of 32-bit integers.
typedef uint64_t L __attribute__((vector_size(4 * W)));
struct Wide {
  L even, odd;
};
inline Wide widen_lanes(U x) { return {(L)x & 0xffffffffu, (L)x >> 32}; }

inline V distances(Distances d, V x) { return (d.top - x) * d.scale; }
inline V bounded(V t) { return t < splat(choice::kFarthest) ? t : splat(choice::kFarthest); }

// This is choice::weight_at(), lane by lane.
inline Wide weights_at(V t) {
  const V near = bounded(t);
  const I halvings = __builtin_convertvector(near, I);
  const V power = choice::power_of_half(near - __builtin_convertvector(halvings, V));
  const Wide mantissa = widen_lanes((U) __builtin_convertvector(power * 0x1p24f, I)), shift = widen_lanes((U)halvings);
  constexpr int kUp = choice::kWeightBits - choice::kMantissaBits;
  return {(mantissa.even << kUp) >> shift.even, (mantissa.odd << kUp) >> shift.odd};
}

// Returns the bins of distances; a larger distance never has a smaller bin.
inline I bins_of(V t, float per_halving) {
  const V place = bounded(t) * per_halving;
  const V last = splat(static_cast<float>(kChoiceBins - 1));
  return __builtin_convertvector(place < last ? place : last, I);
}

// Loads lanes from i on; those past the end are -infinity.
inline V load_row(const float* x, int64_t i, int64_t n) {
  if (i + W <= n) return load(x + i);
  float lanes[W];
  for (int j = 0; j < W; ++j) lanes[j] = i + j < n ? x[i + j] : -__builtin_inff();
  return load(lanes);
}

inline uint32_t bits_of(I mask) {  // one bit per lane
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask));
#else
  uint32_t bits = 0;
  for (int j = 0; j < W; ++j) bits |= mask[j] ? 1u << j : 0u;
  return bits;
#endif
}

// Writes first + j for each set bit j to `to`, in order, and perhaps more behind them, W at most in all. Returns
// their number.
inline int64_t put_places(uint32_t bits, int64_t first, int32_t* to) {
#if defined(__AVX512F__)
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i places = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int32_t>(first)));
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), places));
  return __builtin_popcount(bits);
#else
  int64_t count = 0;
  for (uint32_t left = bits; left != 0; left &= left - 1)
    to[count++] = static_cast<int32_t>(first + __builtin_ctz(left));
  return count;
#endif
}

inline RowRange range_of(const float* x, int64_t n) {
  V top = splat(-__builtin_inff()), lowest = splat(__builtin_inff());
  I bad = {};
  for (int64_t i = 0; i < n; i += W) {
    const int64_t at = i + W <= n || n < W ? i : n - W;  // the last vector overlaps the one before
    const V v = load_row(x, at, n);
    bad |= ~(I)(v < __builtin_inff());
    top = v > top ? v : top;
    lowest = v < lowest ? v : lowest;
  }
  return {max_lanes(top), -max_lanes(-lowest), bits_of(bad) == 0};
}

inline int64_t find(const float* x, int64_t n, float value) {
  for (int64_t i = 0; i < n; i += W)
    if (const uint32_t bits = bits_of((I)(load_row(x, i, n) == value)); bits != 0) {
      const int64_t at = i + __builtin_ctz(bits);
      return at < n ? at : n;
    }
  return n;
}

// Makes the cut smaller until there is room for the tokens found so far.
inline void make_room(const float* x, Distances d, NearTokens* near, int32_t* found) {
  while (near->count > near->room) {
    near->cut = 0.75f * near->cut < near->least ? -1 : 0.75f * near->cut;
    int64_t left = 0;
    for (int64_t i = 0; i < near->count; ++i) {
      const int32_t place = found[i];
      found[left] = place;
      left += choice::distance(d.top, x[place], d.scale) <= near->cut;
    }
    near->count = left;
  }
}

inline uint64_t weigh(const float* x, int64_t n, Distances d, NearTokens* near, int32_t* found) {
  L even = {}, odd = {};
  near->count = 0;
  for (int64_t i = 0; i < n; i += W) {
    const V t = distances(d, load_row(x, i, n));
    const Wide w = weights_at(t);
    even += w.even, odd += w.odd;
    uint32_t bits = bits_of((I)(t <= near->cut));
    if (bits == 0) continue;
    if (i + W > n) bits &= (1u << (n - i)) - 1;
    near->count += put_places(bits, i, found + near->count);
    if (near->count > near->room) make_room(x, d, near, found);
  }
  uint64_t total = 0;
  for (int j = 0; j < W / 2; ++j) total += even[j] + odd[j];
  return total;
}

inline void fill(const float* x, int64_t n, Distances d, ChoiceBins* bins) {
  for (int64_t i = 0; i < n; i += W) {
    const V t = distances(d, load_row(x, i, n));
    const Wide w = weights_at(t);
    const I bin = bins_of(t, bins->per_halving);
    uint64_t weight[2][W / 2];
    int32_t at[W];
    __builtin_memcpy(weight[0], &w.even, sizeof w.even);
    __builtin_memcpy(weight[1], &w.odd, sizeof w.odd);
    __builtin_memcpy(at, &bin, sizeof bin);
    const int lanes = i + W <= n ? W : static_cast<int>(n - i);
    for (int j = 0; j < lanes; ++j) {
      bins->weight[at[j]] += weight[j % 2][j / 2];
      ++bins->count[at[j]];
    }
  }
}

inline int64_t gather(const float* x, int64_t n, Distances d, float per_halving, int32_t bin, int32_t* found) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += W) {
    const I bins = bins_of(distances(d, load_row(x, i, n)), per_halving);
    uint32_t bits = bits_of((I)(bins == bin));
    if (i + W > n) bits &= (1u << (n - i)) - 1;
    if (bits != 0) count += put_places(bits, i, found + count);
  }
  return count;
}

struct VectorLanes {
  using F = V;
  using U = fidelio::cpu::U;
  static V to_float(U x) { return cpu::to_float(x); }
  static U words(V x) { return (U)x; }
  static V floats(U x) { return (V)x; }
  static V where_zero(U x, V yes, V no) { return x == 0 ? yes : no; }
};

inline I ids_from(const int32_t* ids, int64_t i, int64_t n) {
  int32_t lanes[W];
  I of;
  if (ids == nullptr) {
    for (int j = 0; j < W; ++j) lanes[j] = j;
    __builtin_memcpy(&of, lanes, sizeof of);
    return of + static_cast<int32_t>(i);
  }
  if (i + W <= n) {
    __builtin_memcpy(&of, ids + i, sizeof of);
    return of;
  }
  for (int j = 0; j < W; ++j) lanes[j] = i + j < n ? ids[i + j] : INT32_MAX;
  __builtin_memcpy(&of, lanes, sizeof of);
  return of;
}

// Returns the id that wins the race. Most tokens are passed over by a bound: e_i >= v / ln 2 and 2^t >= 2^(whole
// halvings), so a token that by its coarse bits alone arrives later than the best so far cannot win, and the
// logarithm is only needed for those few that may. 1.44 is below 1 / ln 2 by more than all rounding.
inline int32_t race(const float* x, const int32_t* ids, int64_t n, Distances d, const Starters& starters,
                    uint64_t random) {
  uint64_t first = ~uint64_t{0};
  float first_time = __builtin_inff();
  for (int64_t i = 0; i < n; i += W) {
    const V logits = load_row(x, i, n), t = distances(d, logits);
    const I of = ids_from(ids, i, n);
    const I starts = (I)(t <= starters.farthest) &
                     ((I)(logits > starters.last) | ((I)(logits == starters.last) & (I)(of <= starters.last_id)));
    if (bits_of(starts) == 0) continue;
    const V near = bounded(t);
    const I halvings = __builtin_convertvector(near, I);
    const choice::RandomWords<U> words = choice::random_words((U)of, random);
    const V bound = to_float(words.coarse) * (1.44f * 0x1p-31f) * (V)((U)(halvings + 127) << 23);
    if (bits_of(starts & (I)(bound <= first_time)) == 0) continue;
    const V power = choice::power_of_half(1.0f - (near - __builtin_convertvector(halvings, V)));
    const V time = choice::exponential<VectorLanes>(words) * (power * (V)((U)(halvings + 128) << 23));
    for (uint32_t left = bits_of(starts & (I)(time <= first_time)); left != 0; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      first = std::min(first, choice::finish_of(time[lane], of[lane]));
    }
    if (first != ~uint64_t{0}) first_time = choice::float_of(static_cast<uint32_t>(first >> 32));
  }
  return first == ~uint64_t{0} ? -1 : static_cast<int32_t>(static_cast<uint32_t>(first));
}

constexpr ChoiceKernels kChoiceHere = {range_of, find, weigh, race, fill, gather};

}  // namespace
}  // namespace fidelio::cpu
