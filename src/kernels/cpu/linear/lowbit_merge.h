// This file reassembles a plane from the narrower ones in which it is kept (lowbit_split.h). It is included once per
// instruction set, with internal linkage.
#pragma once
#include "kernels/cpu/linear/lowbit.h"

namespace fidelio::cpu::lowbit {
namespace {

typedef uint64_t MergeWord __attribute__((may_alias));

// Returns word w (of eight) of pair i of quads of a span, as a plane of kWidth bits keeps it: the first quad's bits
// begin at bit 0 of every byte, the second's four bits above.
template <int kWidth>
inline uint64_t pair_of(const uint8_t* span, int pair, int w) {
  constexpr uint64_t kBytes = 0x0101010101010101, kMask = ((1 << kWidth) - 1) * (kBytes | kBytes << 4);
  return reinterpret_cast<const MergeWord*>(span)[pair * kWidth / 4 * 8 + w] >> (pair * kWidth % 4) & kMask;
}

// Reassembles a plane from parts of kHigh, kMiddle and kLow bits; kLow = 0 means that there are only two parts. The
// compiler vectorises these loops.
template <int kHigh, int kMiddle, int kLow>
void merge_plane(const uint8_t* parts, int64_t spans, uint8_t* __restrict whole) {
  constexpr int kWhole = kHigh + kMiddle + kLow, kPairs = 4 / kWhole;  // pairs that share a vector of the whole plane
  constexpr int64_t kVector = 64, kAhead = 8192;
  const uint8_t *high = parts, *middle = high + spans * kVector * kHigh, *low = middle + spans * kVector * kMiddle;
  for (int64_t s = 0; s < spans; ++s) {
    const int64_t at = s * kVector;
    for (int i = 0; i < kHigh; ++i) __builtin_prefetch(high + at * kHigh + i * kVector + kAhead, 0, 2);
    for (int i = 0; i < kMiddle; ++i) __builtin_prefetch(middle + at * kMiddle + i * kVector + kAhead, 0, 2);
    for (int i = 0; i < kLow; ++i) __builtin_prefetch(low + at * kLow + i * kVector + kAhead, 0, 2);
    auto* __restrict to = reinterpret_cast<MergeWord*>(whole + at * kWhole);
#pragma GCC unroll 4
    for (int vector = 0; vector < kWhole; ++vector)
      for (int w = 0; w < 8; ++w) {
        uint64_t word = 0;
#pragma GCC unroll 2
        for (int i = 0; i < kPairs; ++i) {
          const int pair = vector * kPairs + i;
          uint64_t of = pair_of<kHigh>(high + at * kHigh, pair, w) << (kMiddle + kLow) |
                        pair_of<kMiddle>(middle + at * kMiddle, pair, w) << kLow;
          if constexpr (kLow > 0) of |= pair_of<kLow>(low + at * kLow, pair, w);
          word |= of << (kWhole * i);
        }
        to[vector * 8 + w] = word;
      }
  }
}

}  // namespace
}  // namespace fidelio::cpu::lowbit
