// This file finds the planes of a packed block and prefetches ahead while they are read. It is included once per
// instruction set, with internal linkage.
#pragma once
#include <immintrin.h>

#include "kernels/cpu/linear/lowbit.h"

#define FIDELIO_INLINE inline __attribute__((always_inline))

namespace fidelio::cpu::lowbit {
namespace {

// Prefetching runs this many bytes of codes ahead, into L2. There are too few lines in flight towards L1 to hide DRAM
// latency (measured: 67% of the probed bandwidth into L1, 100% into L2), and the hardware's own prefetchers stop at
// every page and every change of plane. Prefetching past the end of memory is harmless.
constexpr int64_t kAhead = 8192;

// Returns the width of plane i of a coding, or 0 if there is none.
template <int kCoding>
constexpr int plane_width(int i) {
  constexpr int kBits = bits_of(kCoding);
  if (i == 0) return has_plane4(kBits) ? 4 : 2;
  if (i == 1) return kBits == 8 ? 4 : kBits == 6 || kBits == 7 ? 2 : kBits == 3 || kBits == 5 ? 1 : 0;
  return kBits == 7 ? 1 : 0;
}

FIDELIO_INLINE void prefetch_line(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

template <int kLines>
FIDELIO_INLINE void prefetch_lines(const uint8_t* p) {
  if constexpr (kLines > 0) {
    prefetch_line(p);
    prefetch_lines<kLines - 1>(p + 64);
  }
}

// A Planes finds the planes of one block. The target of a prefetch is the same plane some spans on, in this block or
// beyond its end. For a whole weight it is at most one block away. For a view it may be further: the bytes that a
// view reads of neighbouring blocks are not neighbours, so nothing else prefetches them. (With 576 columns on a Zen 4
// this takes .94 of the time for a view of 4 of 8 bits, and 1.03 for weights of 4 bits.)
template <int kCoding>
struct Planes {
  const uint8_t* p[3];
  int64_t turn;  // from this span on, targets are one block further
  int64_t near[3], far[3];

  Planes(const Layout& l, const uint8_t* block) {
    constexpr int32_t kSpans = kAhead / (64 * bits_of(kCoding));
    const auto spans = static_cast<int32_t>(l.spans);
    const int32_t ahead = is_view(kCoding) || kSpans < spans ? kSpans : spans, rest = ahead % spans;
    const int64_t whole = ahead / spans * l.block_bytes;
    turn = spans - rest;
    for (int i = 0; i < 3; ++i) {
      p[i] = block + l.plane_offset[i];
      near[i] = whole + rest * 64 * plane_width<kCoding>(i);
      far[i] = whole + l.block_bytes - turn * 64 * plane_width<kCoding>(i);
    }
    const uint8_t* const next = block + whole + (rest > 0 ? l.block_bytes : 0);
    for (int64_t at = 0; at < l.plane_offset[0]; at += 64) prefetch_line(next + at);  // scales and zeros
  }

  FIDELIO_INLINE const uint8_t* at(int plane, int64_t span) const {
    return p[plane] + span * 64 * plane_width<kCoding>(plane);
  }
  FIDELIO_INLINE void prefetch(int64_t span) const {
    const int64_t* ahead = span < turn ? near : far;
    prefetch_lines<plane_width<kCoding>(0)>(at(0, span) + ahead[0]);
    prefetch_lines<plane_width<kCoding>(1)>(at(1, span) + ahead[1]);
    prefetch_lines<plane_width<kCoding>(2)>(at(2, span) + ahead[2]);
  }
};

}  // namespace
}  // namespace fidelio::cpu::lowbit
