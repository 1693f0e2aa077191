// Keys and values in the paged cache, and the turning of heads that goes with them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/ops.h"

namespace fidelio::cuda {

constexpr int kPage = 32;  // tokens: kPageTokens of backend.h

// Of a position's vector, for one kv head.
__device__ inline int64_t slot_of(const AttentionArguments& a, int sequence, int position, int kv_head) {
  const int page = a.page_of[int64_t{sequence} * a.pages_per_sequence + position / kPage];
  return (int64_t{page} * a.hk + kv_head) * kPage + position % kPage;
}

// Eight consecutive values of a vector, as they are stored; e is a multiple of 8. Read past L1: a cache page is read
// once a step, and may have been written by this very kernel.
template <KvKind kind>
struct Stored8 {  // f16, bf16
  uint4 raw;
  __device__ void clear() { raw = {0, 0, 0, 0}; }
  __device__ void load(const void* base, const float*, int64_t slot, int e, int column) {
    raw = __ldcg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(base) + slot * e + column));
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
  __device__ void values(float (&to)[8]) const {
    const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j] = all[j];
  }
};
template <>
struct Stored8<KvKind::i8> {
  uint2 raw;
  float2 scale;  // and the lowest value
  __device__ void clear() {
    raw = {0, 0};
    scale = {0, 0};
  }
  __device__ void load(const void* base, const float* scales, int64_t slot, int e, int column) {
    raw = __ldcg(reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(base) + slot * e + column));
    scale = __ldcg(reinterpret_cast<const float2*>(scales) + slot);
  }
  __device__ void values(float (&to)[8]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      to[j] = fmaf(static_cast<float>((j < 4 ? raw.x : raw.y) >> (8 * (j % 4)) & 255), scale.x, scale.y);
  }
};

// One warp stores a vector of e values.
template <KvKind kind>
__device__ void store(void* base, float* scales, int64_t slot, int e, const float* values) {
  const int lane = threadIdx.x % 32;
  if constexpr (kind == KvKind::i8) {
    float low = values[lane % e], high = low;
    for (int i = lane; i < e; i += 32) low = fminf(low, values[i]), high = fmaxf(high, values[i]);
    for (int d = 16; d > 0; d /= 2)
      low = fminf(low, __shfl_xor_sync(~0u, low, d)), high = fmaxf(high, __shfl_xor_sync(~0u, high, d));
    const float scale = (high - low) / 255, inverse = scale > 0 ? 1 / scale : 0;
    for (int i = lane; i < e; i += 32)
      static_cast<uint8_t*>(base)[slot * e + i] =
          static_cast<uint8_t>(fminf(fmaxf(rintf((values[i] - low) * inverse), 0.0f), 255.0f));
    if (lane == 0) scales[slot * 2] = scale, scales[slot * 2 + 1] = low;
  } else {
    for (int i = lane; i < e; i += 32) {
      const int64_t at = slot * e + i;
      if constexpr (kind == KvKind::f32) static_cast<float*>(base)[at] = values[i];
      if constexpr (kind == KvKind::f16) static_cast<__half*>(base)[at] = __float2half_rn(values[i]);
      if constexpr (kind == KvKind::bf16) static_cast<__nv_bfloat16*>(base)[at] = __float2bfloat16_rn(values[i]);
    }
  }
}

// A warp normalises (weight or null) and turns one head, from -> to (which may be from). `turns` (e / 2) {cos, sin}.
// Written with fused operations by name, so that every kernel it is part of rounds alike.
__device__ inline void turn(const float* from, const float* weight, float eps, const float2* turns, int e, float* to) {
  const int lane = threadIdx.x % 32;
  float scale = 1;
  if (weight) {
    float squares = 0;
    for (int i = lane; i < e; i += 32) squares = fmaf(from[i], from[i], squares);
    for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
    scale = 1 / sqrtf(__fadd_rn(squares / static_cast<float>(e), eps));
  }
  for (int i = lane; i < e / 2; i += 32) {
    const float2 t = turns[i];
    const float a = from[i] * scale * (weight ? weight[i] : 1.0f),
                b = from[i + e / 2] * scale * (weight ? weight[i + e / 2] : 1.0f);
    to[i] = fmaf(a, t.x, -__fmul_rn(b, t.y));
    to[i + e / 2] = fmaf(b, t.x, __fmul_rn(a, t.y));
  }
}

}  // namespace fidelio::cuda
