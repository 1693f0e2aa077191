// This file has what the thread blocks that choose a token from a row share, sums over them, and the walk over their
// part of the row. Only choose.cu uses it.
#pragma once
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/rows/choose.h"
#include "step/choice_race.h"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kRoom = 4096, kEach = kRoom / kThreads;  // tokens that can be gathered
constexpr int kBins = 2048, kDigitBits = 11;
constexpr int kCuts = 16;
// Cut i counts tokens as near if they lie fewer whole halvings than this below the best.
__device__ constexpr int kNearer[kCuts] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 24};
__device__ __forceinline__ int cut_of(int halvings) {  // the first cut within which a token is near
  return halvings < 12 ? halvings : halvings < 16 ? 12 + (halvings - 12) / 2 : 14 + (halvings - 16) / 4;
}
constexpr int kMostBlocks = 8;  // the most thread blocks of a cluster

struct Bins {
  uint32_t low[kBins], high[kBins], count[kBins];  // weights are high 2^32 + low
};
// Found is what a thread block has found in its part of a row.
struct Found {
  uint64_t best, worst;  // ranks; `worst` is a complement
  uint64_t total;        // weight
  uint64_t behind;       // the complement of the first finish
  uint32_t bad, near[kCuts];
};
struct Shared {
  union {
    uint64_t ranks[kRoom];
    Bins bins;
  };
  DeviceRule rule;
  Found found[2][kMostBlocks];  // for every thread block of the cluster, used alternately
  uint64_t of_warp[kWarps], of_warp2[kWarps];
  uint64_t answer[4];
  uint32_t gathered, near[kCuts];
};

// Blocks are the thread blocks of a row. What each of them has found is told to all. It is written to the places of
// the exchange before the last one, which all have read before anyone can get here.
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
  // Exchanges results. tell(place, lane) writes what the thread block has found, with 16 lanes.
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

// ---- The next functions combine values over the thread block; every thread gets the result. All threads must call
// them.

struct Sum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Most {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return max(a, b); }
};
template <typename Join>
__device__ uint64_t over_warp(uint64_t value, const Join& join) {
  for (int d = 16; d > 0; d /= 2) value = join(value, __shfl_xor_sync(~0u, value, d));
  return value;
}
// Combines two values at once, between two barriers of all threads. One barrier is here; the other must come before
// the next call.
template <typename Join>
__device__ void over_block(Shared& s, uint64_t& a, uint64_t& b, const Join& join) {
  a = over_warp(a, join), b = over_warp(b, join);
  if (threadIdx.x % 32 == 0) s.of_warp[threadIdx.x / 32] = a, s.of_warp2[threadIdx.x / 32] = b;
  __syncthreads();
  a = over_warp(s.of_warp[threadIdx.x % 32], join), b = over_warp(s.of_warp2[threadIdx.x % 32], join);
}
// SumsBefore is the sum over the threads before this one, and over all.
struct SumsBefore {
  uint64_t before, all;
};
__device__ SumsBefore sum_before(uint64_t* of_warp, uint64_t value) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t sum = value;
  for (int d = 1; d < 32; d *= 2)
    if (const uint64_t other = __shfl_up_sync(~0u, sum, d); lane >= d) sum += other;
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  uint64_t before = of_warp[lane];
  for (int d = 1; d < 32; d *= 2)
    if (const uint64_t other = __shfl_up_sync(~0u, before, d); lane >= d) before += other;
  const uint64_t all = __shfl_sync(~0u, before, 31);
  before = __shfl_sync(~0u, before, max(warp - 1, 0));
  __syncthreads();
  return {(warp > 0 ? before : 0) + sum - value, all};
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
  float top = 0, scale = 0;

  __device__ Row whole() const { return {x, v, 0, v, top, scale}; }
  // Calls work(logit, id) for this thread's tokens, in the order of ids. It is unrolled only four times: the kernel
  // runs once a step, and fetching more instructions would take longer than the waits that they save.
  template <typename Work>
  __device__ __forceinline__ void for_tokens(const Work& work) const {
    if (v % 4 != 0) {
#pragma unroll 1
      for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) work(x[i], i);
      return;
    }
    constexpr int kStep = kThreads * 4;
    const auto load = [&](int id) { return *reinterpret_cast<const float4*>(x + id); };
    int id = begin + static_cast<int>(threadIdx.x) * 4;
    float4 next{};
    if (id < end) next = load(id);
#pragma unroll 1
    for (; id < end; id += kStep) {
      const float4 four = next;
      if (id + kStep < end) next = load(id + kStep);
      work(four.x, id);
      work(four.y, id + 1);
      work(four.z, id + 2);
      work(four.w, id + 3);
    }
  }
  __device__ __forceinline__ float distance(float logit) const { return choice::distance(top, logit, scale); }
};

// ---- The race (choice_race.h).

// Returns the complement of a token's finish, so that the largest is the first. It is 0 if the token does not start.
__device__ uint64_t behind_of(const Row& row, const DeviceRule& rule, float x, int id) {
  const float t = row.distance(x);
  if (!(t <= fminf(rule.farthest, choice::kLastStarter))) return 0;
  return ~choice::finish_of(choice::arrival(id, rule.random, t), id);
}
// Runs the race among the row's tokens whose rank is `last` or better; with `last` 0, among all.
__device__ uint64_t race(const Row& row, const DeviceRule& rule, uint64_t last) {
  uint64_t behind = 0;
  row.for_tokens([&](float x, int id) {
    if (choice::rank_of(x, id) >= last) behind = max(behind, behind_of(row, rule, x, id));
  });
  return behind;
}

}  // namespace
}  // namespace fidelio::cuda
