// Sums of a few rows of W in one group of vectors, and the codebooks that they read.
#pragma once
#include "kernels/cuda/linear/vectors/vector_inputs.cuh"

namespace fidelio::cuda {

constexpr int kVectorWarps = 16, kVectorThreads = 32 * kVectorWarps;  // of a thread block
constexpr int book_bytes(bool high) { return kVectorPlaces * 8 * (high ? 2 : 1); }

__device__ __forceinline__ int dot_unsigned(uint32_t levels, uint32_t x, int sum) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(levels), "r"(x));
  return sum;
}
template <bool kBiased>
__device__ __forceinline__ int dot(uint32_t levels, uint32_t x, int sum) {
  if constexpr (kBiased) return dot_unsigned(levels, x, sum);
  return __dp4a(static_cast<int>(levels), static_cast<int>(x), sum);
}

// Entries lie in shared memory as they are multiplied: with one sign also negated; with more, plus 128, where negating
// u is 256 - u = ~u + 1 without a carry; where there are few, 16 times each, a copy for each pair of banks, else twice.
template <int kSigns, bool kHigh>
struct Book {
  static constexpr int kEach =
      kVectorPlaces / kVectorThreads;  // of a thread: entries thread, thread + kVectorThreads ..
  uint2 entry[kEach];

  __device__ static int count(const VectorWeight& w) { return w.entries * (kHigh ? 1 : 16); }
  __device__ void load(const VectorWeight& w, int block) {
    const auto* from = reinterpret_cast<const uint2*>(w.codebook) + int64_t{block} * w.entries;
    const int first = threadIdx.x, here = count(w);
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (first + j * kVectorThreads < here)
        entry[j] = __ldg(from + (kHigh ? first : first / 16) + j * kVectorThreads / (kHigh ? 1 : 16));
  }
  __device__ void store(const VectorWeight& w, std::byte* to) const {
    auto* book = reinterpret_cast<uint2*>(to);
    const int first = threadIdx.x, here = count(w);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int i = first + j * kVectorThreads;
      if (i >= here) continue;
      const uint2 e = entry[j];
      put(book, i, kSigns == 1 ? e : uint2{e.x ^ 0x80808080u, e.y ^ 0x80808080u});
      if constexpr (kSigns == 1) put(book, i + here, {__vneg4(e.x), __vneg4(e.y)});
    }
  }
  __device__ static void put(uint2* book, int i, uint2 e) {
    book[i] = e;
    if constexpr (kHigh) book[second_place(i)] = e;
  }
};

// Half h of a vector as it is multiplied.
template <int kSigns>
__device__ __forceinline__ uint32_t with_signs(uint32_t levels, const VectorWords& words, int which, int h) {
  if constexpr (kSigns == 1) return levels;
  const uint32_t minus = negated<kSigns>(words.sign, which, h);
  return (levels ^ minus * 255) + minus;
}

// Sums of kRows rows of W and kCount rows of x in one group.
template <int kSigns, bool kHigh, int kRows, int kCount, int kPlanes>
__device__ __forceinline__ void add_group(const VectorWords (&words)[kRows], const std::byte* book, uint32_t copy,
                                          const VectorInputs<kPlanes>& inputs, int group, float (&sum)[kRows][kCount]) {
  constexpr bool kBiased = kSigns != 1;
  constexpr int kCopies = kHigh ? 0 : 4;  // of a centroid, as a power of two
  const int lane = threadIdx.x % 32;
  int whole[kRows][kCount][kPlanes] = {}, bias[kCount][kPlanes] = {};
  uint2 entry[4][kRows];  // all asked for at once: a multiprocessor's warps are few
#pragma unroll
  for (int which = 0; which < 4; ++which)
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      entry[which][r] = *reinterpret_cast<const uint2*>(book + (centroid_at<kHigh, kCopies>(words[r], which) | copy));
#pragma unroll
  for (int which = 0; which < 4; ++which) {
    const int at = (group * 4 + which) * kVectorLanes + lane;
    uint32_t level[kRows][2];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      level[r][0] = with_signs<kSigns>(entry[which][r].x, words[r], which, 0);
      level[r][1] = with_signs<kSigns>(entry[which][r].y, words[r], which, 1);
    }
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
      const uint4 two = inputs.planes(m)[at];
      uint32_t x[kPlanes][2] = {{two.x, two.y}, {two.z, two.w}};
      if constexpr (kPlanes == 3) {
        const uint2 third = inputs.third(m)[at];
        x[2][0] = third.x, x[2][1] = third.y;
      }
#pragma unroll
      for (int p = 0; p < kPlanes; ++p)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if constexpr (kBiased) bias[m][p] = dot_unsigned(0x80808080u, x[p][h], bias[m][p]);
#pragma unroll
          for (int r = 0; r < kRows; ++r) whole[r][m][p] = dot<kBiased>(level[r][h], x[p][h], whole[r][m][p]);
        }
    }
  }
#pragma unroll
  for (int m = 0; m < kCount; ++m) {
    const float scale = inputs.scale(m)[group];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float total = static_cast<float>((whole[r][m][0] - bias[m][0]) * 256 + (whole[r][m][1] - bias[m][1]));
      if constexpr (kPlanes == 3) total = fmaf(total, 256.0f, static_cast<float>(whole[r][m][2] - bias[m][2]));
      sum[r][m] = fmaf(scale, total, sum[r][m]);
    }
  }
}

// Sums over lanes of kCount values, a power of two: lane l's is that of value l / (32 / kCount). Each is added up as a
// tree, halves of the warp first, however many there are.
template <int kCount, int kBy = 16>
__device__ __forceinline__ float sum_of_lanes(float (&v)[kCount], int lane) {
  if constexpr (kBy == 0) {
    return v[0];
  } else if constexpr (kCount == 1) {
    v[0] += __shfl_xor_sync(~0u, v[0], kBy);
    return sum_of_lanes<1, kBy / 2>(v, lane);
  } else {
    const bool upper = (lane & kBy) != 0;
    float kept[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i)
      kept[i] = (upper ? v[kCount / 2 + i] : v[i]) + __shfl_xor_sync(~0u, upper ? v[i] : v[kCount / 2 + i], kBy);
    return sum_of_lanes<kCount / 2, kBy / 2>(kept, lane);
  }
}

// A lane's correction.
struct Correction {
  uint2 levels = {0, 0};
  uint16_t scale = 0;  // FP16
  uint16_t place = 0;  // of a vector
};
__device__ __forceinline__ Correction correction(const VectorWeight& w, int i) {
  return {__ldg(reinterpret_cast<const uint2*>(w.value) + i), __ldg(w.scale + i), __ldg(w.place + i)};
}
// A sum with what it adds: 8 bytes times 8 columns of x. A signed byte b becomes the float 2^23 + 128 + b, less
// 2^23 + 128.
__device__ __forceinline__ float corrected(const Correction& c, float sum, float4 low, float4 high) {
  const uint32_t biased[2] = {c.levels.x ^ 0x80808080u, c.levels.y ^ 0x80808080u};
  const float inputs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  float own = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    own = fmaf(__uint_as_float(__byte_perm(biased[j / 4], 0x4B000000u, 0x7440 + j % 4)) - 8388736.0f, inputs[j], own);
  return fmaf(own, __half2float(__ushort_as_half(c.scale)), sum);
}

}  // namespace fidelio::cuda
