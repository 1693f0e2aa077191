// This file turns a lane's codes into FP16 values, rounded once.
#pragma once
#include "kernels/cuda/linear/layout/lowbit_block.cuh"

namespace fidelio::cuda {

__device__ __forceinline__ __half2 as_halves(uint32_t v) { return *reinterpret_cast<const __half2*>(&v); }
__device__ __forceinline__ uint32_t as_word(__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); }

// Computes the fragments of chunk c as values, rounded once.
template <typename Traits>
__device__ __forceinline__ void values_of(const LaneBlock<Traits>& w, int c, const typename Traits::Table& table,
                                          uint32_t (&a)[2][4]) {
  const int group = c / Traits::kGroupChunks;
  const uint32_t raw = w.scale[group];
  __half2 s[2], unit[2], centre[2];  // for rows g and g + 8
#pragma unroll
  for (int up = 0; up < 2; ++up) {
    // 1024 + b is the half 0x6400 | b. A signed byte is 128 less than the byte with its sign flipped.
    if constexpr (Traits::kScaleBytes == 2)
      s[up] = as_halves(__byte_perm(raw, 0, up ? 0x3232 : 0x1010));
    else
      s[up] = __hsub2(as_halves(__byte_perm(Traits::kGrid ? raw ^ 0x8080 : raw, 0x6400, up ? 0x5151 : 0x5050)),
                      as_halves(Traits::kGrid ? 0x64806480 : 0x64006400));
    // A code counts 2^shift by its place in the half. The difference (1024 + 2^shift q) 2^-shift - (1024 + 2^shift z)
    // 2^-shift is exact.
    if constexpr (Traits::kCentred) {
      unit[up] = __float2half2_rn(code_unit(Traits::kind, Traits::bits, up != 0));
      centre[up] = __hneg2(__hmul2(as_halves(__byte_perm(w.zero[group], 0x6400, up ? 0x5151 : 0x5050)), unit[up]));
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t q[4];
    if constexpr (Traits::kGrid)
      w.codes.grid(c, h, table, q);
    else
      w.codes.integer(c, h, q);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int up = r % 2;
      __half2 value = as_halves(Traits::kGrid ? q[r] : q[r] | 0x64006400);
      if constexpr (Traits::kCentred) value = __hfma2(value, unit[up], centre[up]);
      a[h][r] = as_word(__hmul2(value, s[up]));
    }
  }
}

}  // namespace fidelio::cuda
