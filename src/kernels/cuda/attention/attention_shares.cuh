// This file joins a row's shares. Layout is the layout of a thread block's shared memory, Joined a sum of (m, l, o),
// and Shares the place where shares meet.
#pragma once
#include "kernels/cuda/attention/attention_spans.cuh"
#include "kernels/cuda/device/ptx.cuh"

namespace fidelio::cuda {

constexpr int kWarps = kCut / kSpan, kThreads = kWarps * 32;

// This is the size of what is left of a share: [query][e], then [query] {m, l}, and room for as many {m, l} again.
__host__ __device__ constexpr int slot_floats(int queries, int e) { return queries * (e + 4); }
// In a cluster, `joiners` thread blocks join the shares. Of the queries' columns, chunk c of 128 belongs to thread
// block c % joiners. For each of its chunks it has a record of each share: [lane] four of o, [lane] {m, l}.
constexpr int kChunk = 128, kRecord = kChunk / 4 * 6;  // in columns, and in floats
__host__ __device__ constexpr int chunks_of(int columns) { return (columns + kChunk - 1) / kChunk; }
// Returns how many thread blocks join. All do if there may be much to join; otherwise one does, which frees the
// others' multiprocessors for the next kernel sooner.
__host__ __device__ constexpr int joiners_of(int ranks, bool together) { return together ? ranks : 1; }

// A Layout is the layout of shared memory, in floats, for this many queries.
struct Layout {
  int e, queries;
  int query, fresh, own;                                 // floats of the queries, of fresh rows, and of a warp
  __host__ __device__ int key() const { return query; }  // keys of fresh rows, and their values
  __host__ __device__ int peaks() const { return key() + fresh; }                    // [warp][query] {m, l}
  __host__ __device__ int places() const { return peaks() + kWarps * queries * 2; }  // [warp]: where its o is
  __host__ __device__ int warps() const { return places() + kWarps; }                // [warp]: its own memory
  __host__ __device__ int meeting() const { return warps() + kWarps * own; }         // memory of Shares
  size_t bytes(int ranks, int joiners) const {  // 0 joiners means separate thread blocks
    const int here = ranks == 1    ? slot_floats(queries, e)
                     : joiners > 0 ? (chunks_of(queries * e) + joiners - 1) / joiners * kDealt * kRecord
                                   : 0;
    return static_cast<size_t>(meeting() + here) * 4;
  }
};

// Joined is the sum of the (m, l, o) of parts, for four columns of a head. For part i, peak(i) is {m, l} and sum(i)
// is o; l is 0 for a part that saw nothing.
struct Joined {
  float largest = -INFINITY, weight = 0;
  float4 sum{0, 0, 0, 0};

  __device__ void add(float2 peak, float4 o) {  // a part that saw nothing changes nothing
    const float before = largest;
    largest = fmaxf(before, peak.x);
    const float base = largest == -INFINITY ? 0 : largest;  // nothing has been seen yet
    const float factor = ptx::exp2(before - base), other = ptx::exp2(peak.x - base);
    weight = fmaf(weight, factor, peak.y * other);
    sum = {fmaf(sum.x, factor, o.x * other), fmaf(sum.y, factor, o.y * other), fmaf(sum.z, factor, o.z * other),
           fmaf(sum.w, factor, o.w * other)};
  }
};
template <int kAtOnce, typename Peak, typename Sum>
__device__ __forceinline__ Joined join(const Peak& peak, const Sum& sum) {
  Joined all;
  float2 peaks[kAtOnce];
  float4 sums[kAtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      peaks[i] = peak(first + i);
      sums[i] = peaks[i].y > 0 ? sum(first + i) : float4{0, 0, 0, 0};
    }
  };
  load(0);
#pragma unroll
  for (int i = 0; i < kWarps; ++i) all.largest = fmaxf(all.largest, i < kAtOnce ? peaks[i % kAtOnce].x : peak(i).x);
  // No key may have been seen for one of several rows.
  const float base = all.largest == -INFINITY ? 0 : all.largest;
#pragma unroll
  for (int first = 0; first < kWarps; first += kAtOnce) {
    if (first > 0) load(first);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float factor = ptx::exp2(peaks[i].x - base);
      all.weight = fmaf(factor, peaks[i].y, all.weight);
      all.sum.x = fmaf(factor, sums[i].x, all.sum.x);
      all.sum.y = fmaf(factor, sums[i].y, all.sum.y);
      all.sum.z = fmaf(factor, sums[i].z, all.sum.z);
      all.sum.w = fmaf(factor, sums[i].w, all.sum.w);
    }
  }
  return all;
}

// Shares is where a row's shares meet, to be joined in order. A thread block that has all of them keeps their sum so
// far. Those of a cluster (Hopper) send each other their chunks. Others leave them in memory, and the last to arrive
// joins them.
template <bool kClusters, bool kTogether>
struct Shares {
  const AttentionArguments& a;
  const Part& part;
  const bool alone = gridDim.z == 1;
  // If one thread block has all shares: o, then {m, l} before and after a share, alternating. In a cluster: records
  // [chunk][share].
  float* const mine;
  float* const parts;  // the slots of all shares, in memory
  const int slot = slot_floats(part.queries(), a.e);

  template <typename Work>
  // Over the columns of queries, four at a time.
  __device__ void for_columns(int first, int end, const Work& work) const {
    for (int i = first * a.e + threadIdx.x * 4; i < end * a.e; i += kThreads * 4) work(i);
  }
  template <typename Work>
  __device__ void for_columns(const Work& work) const {
    for_columns(0, part.queries(), work);
  }
  __device__ int columns() const { return part.queries() * a.e; }
  __device__ static int joiners() { return joiners_of(gridDim.z, kTogether); }
  // Calls `work` for the columns that this thread block joins; a warp has 128 in a row.
  template <typename Work>
  __device__ void for_joined(const Work& work) const {
    if constexpr (kClusters)
      if (!alone) {
        for (int chunk = part.rank + threadIdx.x / 32 * joiners(); chunk < chunks_of(columns());
             chunk += kWarps * joiners())
          if (const int i = chunk * kChunk + threadIdx.x % 32 * 4; i < columns()) work(i);
        return;
      }
    for_columns(work);
  }
  __device__ bool has_chunks() const { return kClusters && !alone && part.rank < min(joiners(), chunks_of(columns())); }
  __device__ float* record(int chunk, int share) const { return mine + (chunk / joiners() * kDealt + share) * kRecord; }
  __device__ float2& peak_of(int turn, int i) const {
    return reinterpret_cast<float2*>(mine + part.queries() * a.e)[turn % 2 * part.queries() + i / a.e];
  }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  uint32_t all_here = 0;  // a barrier that counts the bytes of all shares, for this thread block's chunks
  __device__ void begin(uint64_t* barrier) {
    if (!kClusters || alone) return;
    all_here = ptx::shared_address(barrier);
    if (threadIdx.x == 0 && has_chunks()) {
      int own = 0;
      for (int chunk = part.rank; chunk < chunks_of(columns()); chunk += joiners())
        own += min(kChunk, columns() - chunk * kChunk);
      ptx::start_barrier(all_here, 1);
      ptx::publish_barriers();
      ptx::expect(all_here, __popc(part.shares) * own / 4 * (kRecord / 32 * 4));
    }
    __syncwarp();
  }
  __device__ void meet() const {
    if (kClusters && !alone) ptx::meet_cluster();
  }
#else
  __device__ void begin(uint64_t*) {}
  __device__ void meet() const {}
#endif
  __device__ void start() const {
    if (alone) for_columns([&](int i) { *reinterpret_cast<float4*>(mine + i) = {}, peak_of(0, i) = {-INFINITY, 0}; });
  }
  // Puts the turn-th share of this thread block. All threads must meet between one share and the next.
  __device__ void put(int turn, int share, int i, const Joined& of) const {
    const float2 peak{of.largest, of.weight};
    const bool once = i % a.e == 0;
    const int to_peak = part.queries() * a.e + i / a.e * 2;
    if (alone) {
      Joined all{peak_of(turn, i).x, peak_of(turn, i).y, *reinterpret_cast<float4*>(mine + i)};
      all.add(peak, of.sum);
      *reinterpret_cast<float4*>(mine + i) = all.sum;
      if (once) peak_of(turn + 1, i) = {all.largest, all.weight};
      return;
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (kClusters) {
      const int chunk = i / kChunk, lane = i % kChunk / 4, owner = chunk % joiners();
      const uint32_t to = ptx::address_in(owner, record(chunk, share)), at = ptx::address_in(owner, all_here);
      ptx::store_in_cluster(to + lane * 16, of.sum, at);
      ptx::store_in_cluster(to + kChunk * 4 + lane * 8, peak, at);
      return;
    }
#endif
    float* const to = parts + share * slot;
    *reinterpret_cast<float4*>(to + i) = of.sum;
    if (once) *reinterpret_cast<float2*>(to + to_peak) = peak;
  }
  // Returns true if this thread block has to join the shares, which are then complete.
  __device__ bool joins(uint32_t* arrived) const {
    if (alone) return true;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (kClusters) {
      if (has_chunks()) ptx::wait(all_here, 0);
      return has_chunks();
    }
#endif
    __shared__ bool last_to_arrive;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned before = 0;
      for (int rank = 0; rank < part.ranks; ++rank) before += part.works(rank);
      --before;
      // This also sets the count back to 0.
      last_to_arrive = atomicInc(arrived + blockIdx.x * gridDim.y + blockIdx.y, before) == before;
    }
    __syncthreads();
    __threadfence();
    return last_to_arrive;
  }
  __device__ Joined joined(int turns, int i) const {
    if (alone) return {peak_of(turns, i).x, peak_of(turns, i).y, *reinterpret_cast<float4*>(mine + i)};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (kClusters) {
      const float* const first = record(i / kChunk, 0);
      const int lane = i % kChunk / 4;
      return joined([&](int share) { return reinterpret_cast<const float4*>(first + share * kRecord)[lane]; },
                    [&](int share) { return reinterpret_cast<const float2*>(first + share * kRecord + kChunk)[lane]; });
    }
#endif
    const int peak = part.queries() * a.e + i / a.e * 2;
    return joined([&](int share) { return __ldcg(reinterpret_cast<const float4*>(parts + share * slot + i)); },
                  [&](int share) { return __ldcg(reinterpret_cast<const float2*>(parts + share * slot + peak)); });
  }
  // Joins the shares in order.
  template <typename Four, typename Two>
  __device__ Joined joined(const Four& four, const Two& two) const {
    float2 peaks[kDealt];
    float4 sums[kDealt];
#pragma unroll
    for (int share = 0; share < kDealt; ++share) {
      peaks[share] = {-INFINITY, 0}, sums[share] = {0, 0, 0, 0};
      if (part.has_cuts(share)) sums[share] = four(share), peaks[share] = two(share);
    }
    Joined all;
#pragma unroll
    for (int share = 0; share < kDealt; ++share) all.add(peaks[share], sums[share]);
    return all;
  }
};

}  // namespace fidelio::cuda
