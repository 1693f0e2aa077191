// This file turns FP32 rows into INT8 planes or INT16 words (the layout is drawn in lowbit.h). It is included once
// per instruction set with internal linkage, so that the compiler vectorises a copy for each target; all copies give
// the same bits.
#pragma once
#include <cstring>
#include <limits>

#include "kernels/cpu/linear/lowbit.h"

namespace fidelio::cpu::lowbit {
namespace {

// A group below this counts as zero, since 16319 / largest would overflow.
constexpr float kTiny = 1e-30f;

// A Split is how the integers of a span are kept: as two planes of INT8, as one, or as INT16 words.
enum class Split { two, one, words };

// Returns the place of column c among a quad's four words: columns 0 and 2 are the halves of one dword, 1 and 3 of
// the next.
constexpr int word_of(int c) { return c % 4 == 1 || c % 4 == 2 ? c ^ 3 : c; }

struct SpanSums {
  int32_t first, all;  // the sums of the first 16 columns and of all
};

// Rounds values of one span, from column kFirst to before kLast, to integers with |q| <= 16319, stores them as kSplit
// says, and returns their sum.
template <Split kSplit, int kFirst, int kLast>
inline uint32_t split_columns(const float* x, float inverse, int8_t* planes) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, ties to even
  uint32_t total = 0;                    // wraps for NaN and infinities, which the scale carries through
  for (int i = kFirst; i < kLast; ++i) {
    const float shifted = x[i] * inverse + kMagic;
    uint32_t u;
    std::memcpy(&u, &shifted, 4);
    const int32_t q = static_cast<int32_t>(u - 0x4b400000u);
    total += static_cast<uint32_t>(q);
    if constexpr (kSplit == Split::two) {
      const int32_t hi = static_cast<int32_t>(static_cast<uint32_t>(q) + 64u) >> 7;
      planes[i] = static_cast<int8_t>(hi);
      planes[kSpan + i] = static_cast<int8_t>(static_cast<uint32_t>(q) - (static_cast<uint32_t>(hi) << 7));
    } else if constexpr (kSplit == Split::one) {
      planes[i] = static_cast<int8_t>(q);
    } else {
      const auto word = static_cast<int16_t>(q);
      std::memcpy(planes + 2 * word_of(i), &word, 2);
    }
  }
  return total;
}
template <Split kSplit>
inline SpanSums split_span(const float* x, float inverse, int8_t* planes) {
  const uint32_t first = split_columns<kSplit, 0, kHalf>(x, inverse, planes);
  return {static_cast<int32_t>(first),
          static_cast<int32_t>(first + split_columns<kSplit, kHalf, kSpan>(x, inverse, planes))};
}

// Returns the largest magnitude. NaN counts above everything (as bit patterns of magnitudes do), so it reaches the
// scale.
inline float largest_magnitude(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t u;
    std::memcpy(&u, x + i, 4);
    u &= 0x7fffffffu;
    largest = u > largest ? u : largest;
  }
  float value;
  std::memcpy(&value, &largest, 4);
  return value;
}

template <Split kSplit>
inline void prepare_rows(const PrepareJob& job) {
  constexpr int64_t kBytes = kSplit == Split::one ? kSpan : 2 * kSpan;
  const int64_t spans = (job.columns + kSpan - 1) / kSpan;
  for (int64_t m = job.first; m < job.last; ++m) {
    const float* x = job.x + m * job.columns;
    for (int64_t s = 0, g = 0; s < spans; s += job.group_spans, ++g) {
      const int64_t end = s + job.group_spans < spans ? s + job.group_spans : spans;
      const int64_t column = s * kSpan, columns = (end * kSpan < job.columns ? end * kSpan : job.columns) - column;
      const float largest = largest_magnitude(x + column, columns), steps = s >= job.fine_spans ? 127.0f : job.steps;
      const bool zero = largest < kTiny;
      const float inverse = zero ? 0.0f : steps / largest;
      uint32_t sum = 0;
      int32_t first_half = 0;
      for (int64_t t = s; t < end; ++t) {
        int8_t* planes = job.planes + (t * job.rows + m) * kBytes;
        const int64_t left = job.columns - t * kSpan;
        float padded[kSpan] = {};
        if (left < kSpan) std::memcpy(padded, x + t * kSpan, static_cast<size_t>(left) * sizeof(float));
        const SpanSums sums = split_span<kSplit>(left < kSpan ? padded : x + t * kSpan, inverse, planes);
        sum += static_cast<uint32_t>(sums.all);
        first_half = sums.first;
      }
      job.scale[g * job.rows + m] = zero ? 0.0f : largest / steps;
      // For a NaN or infinity the integers mean nothing and the scale carries it; their sum must not overflow a
      // kernel.
      const bool finite = largest <= std::numeric_limits<float>::max();
      job.sum[g * job.rows + m] = finite ? static_cast<int32_t>(sum) : 0;
      if (job.half) job.half[g * job.rows + m] = finite ? first_half : 0;
    }
  }
}

}  // namespace
}  // namespace fidelio::cpu::lowbit
