// This file takes a vector's code out of the words of vectors.h.
#pragma once
#include <cuda_fp16.h>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/linear/vectors/vectors.h"

namespace fidelio::cuda {

// Loads 16 bytes that are read only once, or keeps what was there. It uses a predicate, because the compiler would
// move code behind a branch below work that does not need it.
__device__ __forceinline__ void load_if(bool wanted, const uint4* from, uint4& to) {
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];}"
      : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
      : "l"(from), "r"(static_cast<uint32_t>(wanted)));
}

// SpanWords is a lane's codes of a span.
template <int kSigns, bool kHigh>
struct SpanWords {
  static constexpr int kIndex = kVectorCodes * (kHigh ? 2 : 1) / 16;  // in units of 16 bytes
  static constexpr int kSign = kSigns == 1 ? 0 : kVectorCodes * kSigns / 128;
  uint4 words[kIndex + kSign] = {};

  // Starts the loads without waiting for them.
  __device__ __forceinline__ void load(bool wanted, const uint8_t* record, int lane) {
#pragma unroll
    for (int i = 0; i < kIndex + kSign; ++i)
      load_if(wanted, reinterpret_cast<const uint4*>(record) + i * 32 + lane, words[i]);
  }
  __device__ __forceinline__ uint32_t word(int i) const {
    const uint4& four = words[i / 4];
    return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  }
  // Returns where the centroid of a code begins in shared memory. With 16-bit codes, `book` is the upper half of the
  // address (of a codebook of 64 KB). Otherwise it is the address of the lane's copies.
  __device__ __forceinline__ uint32_t centroid_at(int code, uint32_t book) const {
    if constexpr (kHigh) {
      return ptx::permute(word(code / 2), book, code % 2 == 0 ? 0x5410 : 0x5432);
    } else {
      const uint32_t four = word(code / 4);
      return (code % 4 == 0 ? four << 7 : four >> (8 * (code % 4) - 7)) & 0x7F80 | book;
    }
  }
  // Returns a word with -1 in those bytes of half h of a code that are negated.
  __device__ __forceinline__ uint32_t negated(int code, int h) const {
    const uint32_t signs = word(4 * kIndex + code * kSigns / 32) << (2 * (code % 4) + h);
    const uint32_t spread = kSigns == 8 ? 0xBA98u : code % 8 < 4 ? 0x9988u : 0xBBAAu;
    return ptx::permute(signs, signs, spread);
  }
};

// A VectorAt says what a vector is made of.
struct VectorAt {
  const int8_t* centroid;
  uint32_t minus = 0;  // entry j is negated if bit j is set
  int fix = -1;        // the index of its correction
};
__device__ inline VectorAt vector_at(const VectorWeight& w, int64_t row, int64_t v) {
  const VectorSlot slot(row, v);
  const uint8_t* record = w.codes + (row / kVectorUnit * w.spans.by + slot.span) * w.record_bytes();
  int code = w.high ? centroid_of(*reinterpret_cast<const uint16_t*>(record + slot.byte_at(2 * slot.code)) / 8)
                    : record[slot.byte_at(slot.code)];
  VectorAt at;
  if (w.signs == 1) {
    if (code >= w.entries) code -= w.entries, at.minus = 255;
  } else {
    for (int j = 0; j < w.signs; ++j) {
      const int bit = slot.sign_bit(w.signs, j);
      const uint32_t set = record[w.sign_at() + slot.byte_at(bit / 8)] >> bit % 8 & 1;
      at.minus |= w.signs == 8 ? set << j : set * 3 << 2 * j;
    }
  }
  at.centroid = w.codebook + (int64_t{w.block_of(static_cast<int>(row / kVectorUnit))} * w.entries + code) * 8;
  if (!w.begin) return at;
  int low = w.begin[row], end = w.begin[row + 1];
  const int last = end;
  while (low < end) {
    const int middle = (low + end) / 2;
    if ((w.tag[middle] & 0xFFFF) < v)
      low = middle + 1;
    else
      end = middle;
  }
  if (low < last && (w.tag[low] & 0xFFFF) == v) at.fix = low;
  return at;
}
// Returns one value of it, as decode_row() gives it.
__device__ inline float vector_value(const VectorWeight& w, int64_t row, int64_t column, const VectorAt& at) {
  const auto j = static_cast<int>(column % 8);
  const auto level = static_cast<float>(at.centroid[j]);
  const float scale = __fmul_rn(w.row[row], __half2float(__ushort_as_half(w.column[column])));
  const float value = __fmul_rn(scale, (at.minus >> j & 1) != 0 ? -level : level);
  if (at.fix < 0) return value;
  const float fix = __half2float(__ushort_as_half(static_cast<uint16_t>(w.tag[at.fix] >> 16)));
  return __fadd_rn(value, __fmul_rn(fix, static_cast<float>(w.value[int64_t{at.fix} * 8 + j])));
}
__device__ inline float vector_value(const VectorWeight& w, int64_t row, int64_t column) {
  return vector_value(w, row, column, vector_at(w, row, column / 8));
}

}  // namespace fidelio::cuda
