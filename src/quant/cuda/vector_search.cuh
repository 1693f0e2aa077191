// This file finds the nearest centroids of 32 vectors under one diagonal metric, with a thread block of 16 warps.
//
//     shared memory:  centroids as two halves of four floats, half of each one's norm under the metric, wanted (32, 8)
//     four warps:     eight of the vectors, in registers; a lane has every 128th centroid
//
// A centroid's score is half its norm minus its agreement with the vector (quant/vectors/vector_book.cc). Scores have
// the same order as the host's. With eight signs only magnitudes decide, so centroids are then stored as magnitudes.
#pragma once
#include <cuda_runtime.h>

#include "quant/cuda/vector_kernels.h"

namespace fidelio::cuda {

constexpr int kSearchThreads = 512, kSearchMine = 8, kSearchLanes = 128;
constexpr int kSearchParts = kSearchLanes / 32;
static_assert(kSearchThreads == kVectorTile / kSearchMine * kSearchLanes);

struct SearchRoom {
  float4 *low, *high;  // (entries)
  float* norm;         // (entries): half of each centroid's norm
  float* wanted;       // (kVectorTile, 8): the metric times x
  uint2* found;        // (parts, kVectorTile): score and index

  __host__ __device__ static size_t bytes(int entries) {
    return size_t{36} * static_cast<size_t>(entries) + kVectorTile * 32 + kSearchParts * kVectorTile * 8;
  }
  __device__ SearchRoom(float4* shared, int entries)
      : low(shared),
        high(shared + entries),
        norm(reinterpret_cast<float*>(shared + 2 * entries)),
        wanted(norm + entries),
        found(reinterpret_cast<uint2*>(wanted + kVectorTile * 8)) {}
  __device__ float* behind() const { return reinterpret_cast<float*>(found + kSearchParts * kVectorTile); }
};

template <int kSigns>
__device__ void load_book(const SearchRoom& room, const float* book, int entries) {
  const auto* halves = reinterpret_cast<const float4*>(book);
  for (int i = threadIdx.x; i < 2 * entries; i += kSearchThreads) {
    float4 b = halves[i];
    if constexpr (kSigns == 8) b = {fabsf(b.x), fabsf(b.y), fabsf(b.z), fabsf(b.w)};
    (i % 2 == 0 ? room.low : room.high)[i / 2] = b;
  }
}

// Computes half of the host's norms, with the host's roundings.
__device__ inline void set_norms(const SearchRoom& room, const float* metric, int entries) {
  float m[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) m[j] = metric[j];
  for (int k = threadIdx.x; k < entries; k += kSearchThreads) {
    const float4 low = room.low[k], high = room.high[k];
    const float b[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = __fadd_rn(sum, __fmul_rn(__fmul_rn(m[j], b[j]), b[j]));
    room.norm[k] = 0.5f * sum;
  }
}

template <int kSigns>
__device__ __forceinline__ float score_of(const float (&t)[8], const float4& low, const float4& high, float norm) {
  if constexpr (kSigns == 4) {
    norm -= fabsf(fmaf(t[1], low.y, t[0] * low.x));
    norm -= fabsf(fmaf(t[3], low.w, t[2] * low.z));
    norm -= fabsf(fmaf(t[5], high.y, t[4] * high.x));
    return norm - fabsf(fmaf(t[7], high.w, t[6] * high.z));
  } else {
    const float b[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float dot = kSigns == 8 ? norm : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) dot = fmaf(kSigns == 8 ? -t[j] : t[j], b[j], dot);
    return kSigns == 8 ? dot : norm - fabsf(dot);
  }
}

// Maps a float to an integer with the same order.
__device__ __forceinline__ uint32_t in_order(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// Searches the centroids nearest to `wanted` and writes `found`. The whole thread block takes part, and the caller
// places the barriers. `entries` is a multiple of 128.
template <int kSigns>
__device__ __forceinline__ void search(const SearchRoom& room, int entries) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int part = warp % kSearchParts, first = warp / kSearchParts * kSearchMine;
  float t[kSearchMine][8], best[kSearchMine];
  int index[kSearchMine];
#pragma unroll
  for (int r = 0; r < kSearchMine; ++r) {
    const auto* two = reinterpret_cast<const float4*>(room.wanted + (first + r) * 8);
    const float4 a = two[0], b = two[1];
    t[r][0] = a.x, t[r][1] = a.y, t[r][2] = a.z, t[r][3] = a.w;
    t[r][4] = b.x, t[r][5] = b.y, t[r][6] = b.z, t[r][7] = b.w;
    best[r] = 3.402823466e38f;
    index[r] = part * 32 + lane;
  }
  for (int k = part * 32 + lane; k < entries; k += kSearchLanes) {
    const float4 low = room.low[k], high = room.high[k];
    const float norm = room.norm[k];
#pragma unroll
    for (int r = 0; r < kSearchMine; ++r) {
      const float score = score_of<kSigns>(t[r], low, high, norm);
      const bool better = score < best[r];
      best[r] = better ? score : best[r];
      index[r] = better ? k : index[r];
    }
  }
#pragma unroll
  for (int r = 0; r < kSearchMine; ++r) {
    const uint32_t key = in_order(best[r]), least = __reduce_min_sync(~0u, key);
    const uint32_t k = __reduce_min_sync(~0u, key == least ? static_cast<uint32_t>(index[r]) : ~0u);
    if (lane == 0) room.found[part * kVectorTile + first + r] = {least, k};
  }
}

__device__ __forceinline__ int found_index(const SearchRoom& room, int r) {
  uint2 best = room.found[r];
#pragma unroll
  for (int part = 1; part < kSearchParts; ++part) {
    const uint2 other = room.found[part * kVectorTile + r];
    if (other.x < best.x || (other.x == best.x && other.y < best.y)) best = other;
  }
  return static_cast<int>(best.y);
}

// Eight neighbouring lanes share one vector. Each returns its entry of the centroid, with the sign that agrees with
// t, and the code.
struct FoundEntry {
  float value;
  uint32_t code;
};
template <int kSigns>
__device__ __forceinline__ FoundEntry found_entry(float t, float b, int index) {
  float sum = t * b;
  if constexpr (kSigns < 8) sum += __shfl_xor_sync(~0u, sum, 1);
  if constexpr (kSigns == 1) {
    sum += __shfl_xor_sync(~0u, sum, 2);
    sum += __shfl_xor_sync(~0u, sum, 4);
  }
  const bool negative = sum < 0;
  const uint32_t byte = __ballot_sync(~0u, negative) >> (threadIdx.x & 24) & 255;
  uint32_t signs = byte;
  if constexpr (kSigns == 1) signs = byte & 1;
  if constexpr (kSigns == 4) signs = (byte & 1) | (byte >> 1 & 2) | (byte >> 2 & 4) | (byte >> 3 & 8);
  return {negative ? -b : b, static_cast<uint32_t>(index) | signs << 16};
}

// Returns true if entry j of a code is negative.
template <int kSigns>
__device__ __forceinline__ bool is_negative(uint32_t code, int j) {
  return (code >> (16 + (kSigns == 8 ? j : kSigns == 4 ? j / 2 : 0)) & 1) != 0;
}
__device__ __forceinline__ bool is_negative(int signs, uint32_t code, int j) {
  return signs == 8 ? is_negative<8>(code, j) : signs == 4 ? is_negative<4>(code, j) : is_negative<1>(code, j);
}

template <typename T>
__device__ __forceinline__ T sum_of_eight(T value) {
#pragma unroll
  for (int by = 1; by < 8; by *= 2) value += __shfl_xor_sync(~0u, value, by);
  return value;
}

}  // namespace fidelio::cuda
