// This file evaluates entries of grids that are curves, in halves.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"

namespace fidelio::cuda {

// A CurveTable is the curve of a grid (formats/grid_curve.h).
template <int bits>
struct CurveTable {
  __half2 a1, a3, a5, a0;

  __device__ __forceinline__ explicit CurveTable(const int8_t* grid) {
    const __half* c = reinterpret_cast<const __half*>(grid + (1 << bits));
    a1 = __half2half2(c[0]), a3 = __half2half2(c[1]), a5 = __half2half2(c[2]), a0 = __half2half2(c[3]);
  }
  // Maps halves 1024 + q 2^(8 - bits) to sums whose low bytes are the entries + 128.
  __device__ __forceinline__ uint32_t two(uint32_t codes) const {
    const __half2 u = __hfma2(*reinterpret_cast<const __half2*>(&codes), __float2half2_rn(0x1p-7f),
                              __float2half2_rn(1.0f / (1 << bits) - 9));
    const __half2 t = __hmul2(u, u), y = __hfma2(__hfma2(__hfma2(a5, t, a3), t, a1), u, a0);
    return *reinterpret_cast<const uint32_t*>(&y);
  }
  // Does this for four codes, each at the upper end of its byte, with garbage below them.
  __device__ __forceinline__ uint32_t four(uint32_t v) const {
    constexpr uint32_t mask = (0xffu & ~((1u << (8 - bits)) - 1)) * 0x00010001u;
    return ptx::permute(two((v & mask) | 0x64006400u), two(((v >> 8) & mask) | 0x64006400u), 0x6240);
  }
};

}  // namespace fidelio::cuda
