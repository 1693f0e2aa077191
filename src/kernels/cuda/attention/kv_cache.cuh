// This file reads and writes keys and values in the paged cache, and has the rotation of heads by position that goes
// with them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/rows/ops.h"

namespace fidelio::cuda {

constexpr int kPage = 32;  // in tokens; the same as kPageTokens of backend.h

// Returns the slot of a position's vector for one kv head.
__device__ inline int64_t slot_of(const AttentionArguments& a, int sequence, int position, int kv_head) {
  const int page = a.page_of[int64_t{sequence} * a.pages_per_sequence + position / kPage];
  return (int64_t{page} * a.hk + kv_head) * kPage + position % kPage;
}

// Stored8 is eight consecutive values of a vector as they are stored; e is a multiple of 8. They are read past L1,
// because a cache page is read once a step and may have been written by this very kernel. take() must be called by
// all kLanes neighbouring lanes that share a vector; those past its end pass `there` as false.
template <KvKind kind>
struct Stored8 {  // for f16 and bf16
  uint4 raw;
  __device__ void clear() { raw = {0, 0, 0, 0}; }
  __device__ void load(const void* base, const float*, int64_t slot, int e, int column) {
    raw = __ldcg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(base) + slot * e + column));
  }
  __device__ void save(void* base, float*, int64_t slot, int e, int column) const {
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(base) + slot * e + column) = raw;
  }
  template <int kLanes>
  __device__ void take(const float (&from)[8], bool) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kind == KvKind::f16) {
        const __half2 pair = __floats2half2_rn(from[2 * j], from[2 * j + 1]);
        words[j] = *reinterpret_cast<const uint32_t*>(&pair);
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * j], from[2 * j + 1]);
        words[j] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
    raw = {words[0], words[1], words[2], words[3]};
  }
  __device__ void values(float (&to)[8]) const {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 pair;
      if constexpr (kind == KvKind::f16)
        pair = __half22float2(*reinterpret_cast<const __half2*>(&words[j]));
      else
        pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&words[j]));
      to[2 * j] = pair.x;
      to[2 * j + 1] = pair.y;
    }
  }
};
template <>
struct Stored8<KvKind::f32> {
  float4 low, high;
  __device__ void clear() { low = high = {0, 0, 0, 0}; }
  __device__ void load(const void* base, const float*, int64_t slot, int e, int column) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(base) + slot * e + column);
    low = __ldcg(from);
    high = __ldcg(from + 1);
  }
  __device__ void save(void* base, float*, int64_t slot, int e, int column) const {
    auto* to = reinterpret_cast<float4*>(static_cast<float*>(base) + slot * e + column);
    to[0] = low;
    to[1] = high;
  }
  template <int kLanes>
  __device__ void take(const float (&from)[8], bool) {
    low = {from[0], from[1], from[2], from[3]};
    high = {from[4], from[5], from[6], from[7]};
  }
  __device__ void values(float (&to)[8]) const {
    const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j] = all[j];
  }
};
template <>
struct Stored8<KvKind::i8> {
  uint2 raw;
  float2 scale;  // the scale and the lowest value
  __device__ void clear() {
    raw = {0, 0};
    scale = {0, 0};
  }
  __device__ void load(const void* base, const float* scales, int64_t slot, int e, int column) {
    raw = __ldcg(reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(base) + slot * e + column));
    scale = __ldcg(reinterpret_cast<const float2*>(scales) + slot);
  }
  __device__ void save(void* base, float* scales, int64_t slot, int e, int column) const {
    *reinterpret_cast<uint2*>(static_cast<uint8_t*>(base) + slot * e + column) = raw;
    if (column == 0) reinterpret_cast<float2*>(scales)[slot] = scale;
  }
  template <int kLanes>
  __device__ void take(const float (&from)[8], bool there) {
    float low = INFINITY, high = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (there) low = fminf(low, from[j]), high = fmaxf(high, from[j]);
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2)
      low = fminf(low, __shfl_xor_sync(~0u, low, d)), high = fmaxf(high, __shfl_xor_sync(~0u, high, d));
    scale = {(high - low) / 255, low};
    const float inverse = scale.x > 0 ? 1 / scale.x : 0;
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; ++j)
      words[j / 4] |= static_cast<uint32_t>(fminf(fmaxf(rintf((from[j] - low) * inverse), 0.0f), 255.0f))
                      << 8 * (j % 4);
    raw = {words[0], words[1]};
  }
  __device__ void values(float (&to)[8]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      to[j] = fmaf(static_cast<float>((j < 4 ? raw.x : raw.y) >> (8 * (j % 4)) & 255), scale.x, scale.y);
  }
};
// i4x2 has the bytes of i8 in two planes. For each page and kv head these are high [32][e / 2] and then low [32][e /
// 2], so that the high nibbles can be read alone. In a word of eight columns, byte j has column j in its low nibble
// and j + 4 in its high one.
template <>
struct Stored8<KvKind::i4x2> : Stored8<KvKind::i8> {  // raw holds the words of high and of low nibbles
  static constexpr uint32_t kLow = 0x0f0f0f0f;
  __device__ static int64_t byte_of(int64_t slot, int e, int column) {
    return slot / kPage * kPage * e + slot % kPage * (e / 2) + column / 2;
  }
  __device__ void load(const void* base, const float* scales, int64_t slot, int e, int column) {
    const uint8_t* at = static_cast<const uint8_t*>(base) + byte_of(slot, e, column);
    raw.x = __ldcg(reinterpret_cast<const uint32_t*>(at));
    raw.y = __ldcg(reinterpret_cast<const uint32_t*>(at + kPage / 2 * e));
    scale = __ldcg(reinterpret_cast<const float2*>(scales) + slot);
  }
  __device__ void save(void* base, float* scales, int64_t slot, int e, int column) const {
    uint8_t* at = static_cast<uint8_t*>(base) + byte_of(slot, e, column);
    *reinterpret_cast<uint32_t*>(at) = raw.x;
    *reinterpret_cast<uint32_t*>(at + kPage / 2 * e) = raw.y;
    if (column == 0) reinterpret_cast<float2*>(scales)[slot] = scale;
  }
  template <int kLanes>
  __device__ void take(const float (&from)[8], bool there) {
    Stored8<KvKind::i8>::take<kLanes>(from, there);
    raw = {ptx::select_bits<kLow>(raw.x >> 4, raw.y), ptx::select_bits<kLow>(raw.x, raw.y << 4)};
  }
  __device__ void values(float (&to)[8]) const {
    Stored8<KvKind::i8> whole;
    whole.raw = {ptx::select_bits<kLow>(raw.y, raw.x << 4), ptx::select_bits<kLow>(raw.y >> 4, raw.x)};
    whole.scale = scale;
    whole.values(to);
  }
};

// Returns a lane's eight columns from `column` on of a vector of e values, with zeros past its end.
__device__ inline void eight_of(const float* from, int column, int e, float (&to)[8]) {
  const float4 zero{0, 0, 0, 0}, a = column < e ? *reinterpret_cast<const float4*>(from + column) : zero,
                                 b = column < e ? *reinterpret_cast<const float4*>(from + column + 4) : zero;
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

constexpr int kWidestHead = 256;

// Normalises (unless weight is null) and rotates one head with a warp; it passes the result pair by pair to
// put(column, {x, y}). `turns` (e / 2) are {cos, sin}; e is a multiple of 8. Everything is loaded before anything is
// used or put. Fused operations are written by name, so that every kernel that contains this rounds alike.
template <typename Put>
__device__ __forceinline__ void turn(const float* from, const float* weight, float eps, const float2* turns, int e,
                                     const Put& put) {
  constexpr int kKept = kWidestHead / 2 / 64;  // pairs of neighbouring columns in each half of the head
  const int first = threadIdx.x % 32 * 2, half = e / 2;
  float2 low[kKept], high[kKept], low_weight[kKept], high_weight[kKept];
  float4 angles[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (const int at = first + i * 64; at < half) {
      low[i] = *reinterpret_cast<const float2*>(from + at);
      high[i] = *reinterpret_cast<const float2*>(from + half + at);
      angles[i] = *reinterpret_cast<const float4*>(turns + at);
      if (weight) {
        low_weight[i] = *reinterpret_cast<const float2*>(weight + at);
        high_weight[i] = *reinterpret_cast<const float2*>(weight + half + at);
      }
    }
  if (weight) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (first + i * 64 < half)
        squares = fmaf(low[i].x, low[i].x,
                       fmaf(low[i].y, low[i].y, fmaf(high[i].x, high[i].x, fmaf(high[i].y, high[i].y, squares))));
    for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
    const float scale = 1 / sqrtf(__fadd_rn(squares / static_cast<float>(e), eps));
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (first + i * 64 < half) {
        low[i] = {__fmul_rn(__fmul_rn(low[i].x, scale), low_weight[i].x),
                  __fmul_rn(__fmul_rn(low[i].y, scale), low_weight[i].y)};
        high[i] = {__fmul_rn(__fmul_rn(high[i].x, scale), high_weight[i].x),
                   __fmul_rn(__fmul_rn(high[i].y, scale), high_weight[i].y)};
      }
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (const int at = first + i * 64; at < half) {
      const float4 t = angles[i];
      put(at, float2{fmaf(low[i].x, t.x, -__fmul_rn(high[i].x, t.y)), fmaf(low[i].y, t.z, -__fmul_rn(high[i].y, t.w))});
      put(half + at,
          float2{fmaf(high[i].x, t.x, __fmul_rn(low[i].x, t.y)), fmaf(high[i].y, t.z, __fmul_rn(low[i].y, t.w))});
    }
}

}  // namespace fidelio::cuda
