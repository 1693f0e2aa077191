// The thread blocks that choose a token from a row: what they share, sums over them, and the walk over their part of the
// row. For choose.cu alone.
#pragma once
#include "kernels/choice_arithmetic.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/rows/choose.h"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kRoom = 4096, kEach = kRoom / kThreads;  // tokens gathered
constexpr int kBins = 2048, kDigitBits = 11;
constexpr int kCuts = 16;
// Tokens fewer whole halvings than this below the best are near.
__device__ constexpr int kNearer[kCuts] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 24};
__device__ __forceinline__ int cut_of(int halvings) {  // the first that a token is near by
  return halvings < 12 ? halvings : halvings < 16 ? 12 + (halvings - 12) / 2 : 14 + (halvings - 16) / 4;
}
constexpr int kMostBlocks = 8;  // of a cluster

struct Bins {
  uint32_t low[kBins], high[kBins], count[kBins];  // weights are high 2^32 + low
};
// What a thread block found in its part of a row.
struct Found {
  uint64_t best, worst;         // ranks; worst is the complement
  uint64_t total, near_enough;  // weights
  uint32_t bad, near[kCuts];
};
struct Shared {
  union {
    uint64_t ranks[kRoom];
    Bins bins;
  };
  DeviceRule rule;
  Found found[2][kMostBlocks];  // of every thread block of the cluster, in turns
  uint64_t of_warp[kWarps], of_warp2[kWarps];
  uint64_t answer[4];
  uint32_t gathered, near[kCuts];
};

// The thread blocks of a row. What each of them found is told to all: to the places that the exchange before the last
// one used, which everybody has read before anybody can be here.
template <int kBlocks>
struct Blocks {
  Shared& s;
  int turn = 0;

  __device__ int rank() const { return kBlocks == 1 ? 0 : static_cast<int>(blockIdx.z); }
  __device__ Shared& of(int other) const {
    if constexpr (kBlocks == 1)
      return s;
    else
      return *ptx::in_thread_block(other, &s);
  }
  __device__ void meet() const {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
      __syncwarp();
      ptx::cluster_arrive();
      ptx::cluster_wait();
    }
  }
  // tell(place, lane) writes what the thread block found, by 16 lanes.
  template <typename Tell>
  __device__ const Found* exchange(const Tell& tell) {
    static_assert(kBlocks * 16 <= kThreads);
    const int to = static_cast<int>(threadIdx.x) / 16;
    if (to < kBlocks) tell(of(to).found[turn][rank()], static_cast<int>(threadIdx.x) % 16);
    meet();
    const Found* all = s.found[turn];
    turn ^= 1;
    return all;
  }
};

// ---- Over the thread block; every thread gets the result. All threads call them.

__device__ uint64_t sum_of_block(Shared& s, uint64_t value) {
  for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(~0u, value, d);
  if (threadIdx.x % 32 == 0) s.of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = s.of_warp[threadIdx.x % 32];
  for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(~0u, value, d);
  __syncthreads();
  return value;
}
__device__ uint64_t most_of_block(Shared& s, uint64_t value) {
  for (int d = 16; d > 0; d /= 2) value = max(value, __shfl_xor_sync(~0u, value, d));
  if (threadIdx.x % 32 == 0) s.of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = s.of_warp[threadIdx.x % 32];
  for (int d = 16; d > 0; d /= 2) value = max(value, __shfl_xor_sync(~0u, value, d));
  __syncthreads();
  return value;
}
// The sum of the threads before.
__device__ uint64_t sum_before(uint64_t* of_warp, uint64_t value) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t sum = value;
  for (int d = 1; d < 32; d *= 2)
    if (const uint64_t other = __shfl_up_sync(~0u, sum, d); lane >= d) sum += other;
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  uint64_t before = of_warp[lane];
  for (int d = 1; d < 32; d *= 2)
    if (const uint64_t other = __shfl_up_sync(~0u, before, d); lane >= d) before += other;
  before = __shfl_sync(~0u, before, max(warp - 1, 0));
  __syncthreads();
  return (warp > 0 ? before : 0) + sum - value;
}

// ---- A row.

__device__ __forceinline__ float logit_of(uint64_t rank) {
  const uint32_t key = static_cast<uint32_t>(rank >> 32);
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

struct Row {
  const float* x;
  int v;
  int begin, end;  // the part that this thread block reads
  float top, scale;

  __device__ Row whole() const { return {x, v, 0, v, top, scale}; }
  // work(logit, id) for this thread's tokens, in the order of ids.
  template <typename Work>
  __device__ __forceinline__ void for_tokens(const Work& work) const {
    if (v % 4 != 0) {
#pragma unroll 4
      for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) work(x[i], i);
      return;
    }
    constexpr int kAtOnce = 4, kStep = kThreads * 4;
    for (int first = begin + static_cast<int>(threadIdx.x) * 4; first < end; first += kAtOnce * kStep) {
      float4 four[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if (first + j * kStep < end) four[j] = *reinterpret_cast<const float4*>(x + first + j * kStep);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int id = first + j * kStep;
        if (id >= end) break;
        work(four[j].x, id);
        work(four[j].y, id + 1);
        work(four[j].z, id + 2);
        work(four[j].w, id + 3);
      }
    }
  }
  __device__ __forceinline__ float distance(float logit) const { return choice::distance(top, logit, scale); }
};

}  // namespace
}  // namespace fidelio::cuda
