// A vector's code out of the words of vectors.h.
#pragma once
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/linear/vectors/vectors.h"

namespace fidelio::cuda {

struct VectorWords {
  uint32_t index = 0, high = 0, sign = 0;
};

// A lane's words of the record at `record`, as they are there: nothing waits for them here.
template <int kSigns, bool kHigh>
__device__ __forceinline__ VectorWords vector_words(const uint8_t* record, int lane) {
  constexpr int kSignAt = kVectorLanes * (kHigh ? 8 : 4);
  VectorWords words;
  if constexpr (kHigh) {
    const uint2 places = ptx::load_streamed(reinterpret_cast<const uint2*>(record) + lane);
    words.index = places.x, words.high = places.y;
  } else {
    words.index = ptx::load_streamed(reinterpret_cast<const uint32_t*>(record) + lane);
  }
  using Signs = std::conditional_t<kSigns == 8, uint32_t, uint16_t>;
  if constexpr (kSigns > 1) words.sign = ptx::load_streamed(reinterpret_cast<const Signs*>(record + kSignAt) + lane);
  return words;
}

// With one sign, which is part of the index; zeros where they are not wanted: under a predicate, as what stands behind a
// branch the compiler puts below work that does not need it.
__device__ __forceinline__ VectorWords places_if(bool wanted, const uint8_t* record, int lane) {
  VectorWords words;
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;\n"
      "@wanted ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];}"
      : "=&r"(words.index), "=&r"(words.high)
      : "l"(reinterpret_cast<const uint2*>(record) + lane), "r"(static_cast<uint32_t>(wanted)));
  return words;
}

// Where a vector's centroid begins, in bytes, among centroids (8 bytes) that are stored 2^kCopies times each.
template <bool kHigh, int kCopies>
__device__ __forceinline__ uint32_t centroid_at(const VectorWords& words, int which) {
  constexpr int kShift = 3 + kCopies, kBits = kHigh ? kVectorPlaceBits : 8;
  constexpr uint32_t kMask = ((1u << kBits) - 1) << kShift;
  const int from = kBits * which - kShift;
  if (from < 0) return words.index << -from & kMask;
  if (!kHigh || from + kShift + kBits <= 32) return words.index >> from & kMask;
  if (from >= 32) return words.high >> (from - 32) & kMask;
  return __funnelshift_r(words.index, words.high, from) & kMask;
}

// A bit in the lowest place of each of four bytes: those entries of half h of vector `which` are negated. Of four signs
// each is for a pair of entries, and so for both of its bytes.
template <int kSigns>
__device__ __forceinline__ uint32_t negated(uint32_t sign, int which, int h) {
  return (kSigns == 8 ? sign : __byte_perm(sign, 0, 0x1100)) >> (2 * which + h) & 0x01010101u;
}

// One value, as decode_row() gives it.
__device__ inline float vector_value(const VectorWeight& w, int64_t row, int64_t column) {
  const int64_t v = column / 8;
  const auto lane = static_cast<int>(v % kVectorLanes);
  const int which = static_cast<int>(v % kVectorGroup / kVectorLanes), j = static_cast<int>(column % 8);
  const uint8_t* record = w.codes + (row * w.groups + v / kVectorGroup) * w.record_bytes();
  VectorWords words;
  words.index = reinterpret_cast<const uint32_t*>(record)[w.high ? 2 * lane : lane];
  if (w.high) words.high = reinterpret_cast<const uint32_t*>(record)[2 * lane + 1];
  const uint64_t places = uint64_t{words.high} << 32 | words.index;
  int64_t code = w.high ? centroid_of(static_cast<int>(places >> (kVectorPlaceBits * which) & (2 * kVectorPlaces - 1)))
                        : static_cast<int>(words.index >> (8 * which) & 255);
  uint32_t signs = 0;
  if (w.signs == 8) signs = negated<8>(reinterpret_cast<const uint32_t*>(record + w.sign_at())[lane], which, j / 4);
  if (w.signs == 4) signs = negated<4>(reinterpret_cast<const uint16_t*>(record + w.sign_at())[lane], which, j / 4);
  bool minus = (signs >> (8 * (j % 4)) & 1) != 0;
  if (w.signs == 1 && code >= w.entries) code -= w.entries, minus = true;
  const int64_t entry = int64_t{w.block_of(static_cast<int>(row / kVectorUnit))} * w.entries + code;
  const auto level = static_cast<float>(w.codebook[entry * 8 + j]);
  const float scale = __fmul_rn(w.row[row], __half2float(__ushort_as_half(w.column[column])));
  const float value = __fmul_rn(scale, minus ? -level : level);
  if (!w.begin) return value;
  int low = w.begin[row], end = w.begin[row + 1];
  while (low < end) {
    const int middle = (low + end) / 2;
    if (w.place[middle] < v)
      low = middle + 1;
    else
      end = middle;
  }
  if (low >= w.begin[row + 1] || w.place[low] != v) return value;
  return __fadd_rn(value,
                   __fmul_rn(__half2float(__ushort_as_half(w.scale[low])), static_cast<float>(w.value[low * 8 + j])));
}

}  // namespace fidelio::cuda
