// Attention over the paged cache.
//
// The context of a row is cut at multiples of kCut = 128 positions, wherever the row stands in its batch, and the cuts
// are dealt into kDealt = 8 shares, for all query heads that share a kv head. One to eight thread blocks, a cluster,
// have the shares among them: as many as are on the device at once, for each has its queries to turn before it begins.
//
//      cut      0 ................. 127 | 128 .............. 255 | 256 ... p
//      share    0                       | 1                      | 2            (cut 8 is share 0's again)
//      span     [w0][w1][w2] ...   [w7] | [w0] ...               | [w0]
//      warp     16 positions (kSpan) of each of its thread block's cuts, and needs nobody else until a share is done:
//               keys and values to registers at once, the next ones while it works on these; dots over kLanes lanes a
//               position, eight columns a lane; softmax with a lane a position; p v, eight columns a lane
//      share    (m, l, o) of the warps joined in order and left with the first thread block of the cluster
//      row      that one joins the shares' in order and leaves the result prepared for the next product
//
// So the order of all sums depends on the row's position alone, not on how many thread blocks a row has.
// Before Hopper thread blocks leave their parts in memory and the last to arrive joins them. Where each sequence of the
// batch has one row, the same kernel also turns its queries and its key, and appends key and value: `fresh`.
#include <algorithm>

#include "kernels/cuda/attention_halves.cuh"
#include "kernels/cuda/attention_walk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prepare.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kWarps = kCut / kSpan, kThreads = kWarps * 32;
static_assert(kWarps == kDealt);  // join() takes as many of either

// What is left of a share: [head][e], then [head] {m, l}; and room, for alignment.
__host__ __device__ constexpr int slot_floats(int heads, int e) { return heads * (e + 4); }

// Shared memory, in floats, for so many heads. With two buffers warps go on while their last share is joined.
struct Layout {
  int e, heads, buffers;
  int query, score;                                                 // floats of the queries, and of a warp's scores
  __host__ __device__ int key() const { return query; }             // and the value after it
  __host__ __device__ int scores() const { return key() + 2 * e; }  // of each warp
  __host__ __device__ int peaks() const { return scores() + kWarps * score; }  // [buffer][warp][head] {m, l}
  __host__ __device__ int sums() const { return peaks() + buffers * kWarps * heads * 2; }  // [buffer][warp][head][e]
  __host__ __device__ int inbox() const { return sums() + buffers * kWarps * heads * e; }  // of thread block 0: slots
  __host__ __device__ int bytes(bool has_inbox) const {
    return (inbox() + (has_inbox ? kDealt * slot_floats(heads, e) : 0)) * 4;
  }
};

// (m, l, o) of parts that have their own, four columns of a head: for each part i, peak(i) is {m, l}, sum(i) is o; l of
// a part that saw nothing is 0.
struct Joined {
  float largest = -INFINITY, weight = 0;
  float4 sum{0, 0, 0, 0};
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
  for (int i = 0; i < kDealt; ++i) all.largest = fmaxf(all.largest, i < kAtOnce ? peaks[i % kAtOnce].x : peak(i).x);
#pragma unroll
  for (int first = 0; first < kDealt; first += kAtOnce) {
    if (first > 0) load(first);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float factor = exp2f(peaks[i].x - all.largest);
      all.weight = fmaf(factor, peaks[i].y, all.weight);
      all.sum.x = fmaf(factor, sums[i].x, all.sum.x);
      all.sum.y = fmaf(factor, sums[i].y, all.sum.y);
      all.sum.z = fmaf(factor, sums[i].z, all.sum.z);
      all.sum.w = fmaf(factor, sums[i].w, all.sum.w);
    }
  }
  return all;
}

// A row's columns i .. i + 3 of these heads, to memory, and prepared if they are whole blocks, of which a warp has one.
__device__ void finish(const AttentionArguments& a, const Part& part, int i, const Joined& all, float* out,
                       uint8_t* blocks) {
  const float inverse = 1 / all.weight;
  const float4 v = {all.sum.x * inverse, all.sum.y * inverse, all.sum.z * inverse, all.sum.w * inverse};
  const int column = part.head0 * a.e + i;
  *reinterpret_cast<float4*>(out + int64_t{part.row} * a.h * a.e + column) = v;
  if (blocks)
    prepare_block(v, part.row, a.n, column / kBlockColumns, (a.h * a.e + kBlockColumns - 1) / kBlockColumns, blocks);
}

// Joins a row's shares, which are in `slots`.
__device__ void join_row(const AttentionArguments& a, const Part& part, int first_head, const float* slots, float* out,
                         uint8_t* blocks) {
  const int slot = slot_floats(part.heads, a.e);
  for (int i = threadIdx.x * 4, head = first_head; i < part.heads * a.e; i += kThreads * 4, head = i / a.e)
    finish(a, part, i,
           join<kDealt>(
               [&](int share) {
                 if (!part.has_cuts(share)) return float2{-INFINITY, 0};
                 return *reinterpret_cast<const float2*>(slots + share * slot + part.heads * a.e + head * 2);
               },
               [&](int share) { return *reinterpret_cast<const float4*>(slots + share * slot + i); }),
           out, blocks);
}

// What thread blocks may touch before the kernel before is done, and then the rest of a row's own: queries, turned if
// they are fresh, and its key and value, into shared memory.
template <class Walk>
__device__ void take_queries(const AttentionArguments& a, const FreshHeads& fresh, const Part& part, const float* q,
                             float* queries, float* key) {
  const float scale = rsqrtf(static_cast<float>(a.e)) * 1.44269504088896341f;  // powers of two from here on
  const float* from = q + (int64_t{part.row} * a.h + part.head0) * a.e;
  const auto put = [&](int head) {
    return [=](int column, float2 pair) {
      Walk::put_query(queries, a.e, head, column, {__fmul_rn(pair.x, scale), __fmul_rn(pair.y, scale)});
    };
  };
  if (!fresh.k) {
    for (int i = threadIdx.x * 2; i < part.heads * a.e; i += kThreads * 2)
      put(i / a.e)(i % a.e, *reinterpret_cast<const float2*>(from + i));
    return;
  }
  const float2* turns = reinterpret_cast<const float2*>(fresh.turns) + int64_t{part.row} * (a.e / 2);
  const int64_t at = (int64_t{part.row} * a.hk + part.kv_head) * a.e;
  const int others = part.last / kCut % kDealt % part.ranks == part.rank ? 2 : 0;  // the key and the value
  for (int head = threadIdx.x / 32; head < part.heads + others; head += kWarps)
    if (head < part.heads)
      turn(from + head * a.e, fresh.q_norm, fresh.eps, turns, a.e, put(head));
    else if (head == part.heads)
      turn(fresh.k + at, fresh.k_norm, fresh.eps, turns, a.e,
           [&](int column, float2 pair) { *reinterpret_cast<float2*>(key + column) = pair; });
    else
      for (int i = threadIdx.x % 32 * 4; i < a.e; i += 128)
        *reinterpret_cast<float4*>(key + a.e + i) = *reinterpret_cast<const float4*>(fresh.v + at + i);
}

template <class Walk>
__global__ void __launch_bounds__(kThreads, Walk::kResident)
    attend_cuts(AttentionArguments a, FreshHeads fresh, const float* q, int row0, Layout layout, float* scratch,
                uint32_t* arrived, float* out, uint8_t* blocks) {
  extern __shared__ __align__(16) float shared[];
  ptx::allow_dependents();
  constexpr int kHeads = Walk::kHeads;
  constexpr bool kOne = Walk::kOne;           // each thread block has one share
  constexpr int kAtOnce = kOne ? kDealt : 4;  // while the next share's keys and values are in registers
  const int warp = threadIdx.x / 32, group = a.h / a.hk, passes = (group + kHeads - 1) / kHeads;
  Part part;
  part.row = row0 + blockIdx.x;
  part.sequence = a.sequence[part.row];
  part.kv_head = blockIdx.y / passes;
  part.head0 = part.kv_head * group + blockIdx.y % passes * kHeads;
  part.heads = min(kHeads, (part.kv_head + 1) * group - part.head0);
  part.last = a.positions[part.row];
  part.first = a.window > 0 ? max(0, part.last - a.window + 1) : 0;
  part.rank = blockIdx.z;
  part.ranks = kOne ? kDealt : static_cast<int>(gridDim.z);
  part.find_shares();
  const bool works = part.works(part.rank);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  float* const inbox = shared + layout.inbox();
  const bool cluster = gridDim.z > 1;
  if (!works && part.rank > 0) return;
  __shared__ __align__(8) uint64_t all_here;  // of thread block 0: the bytes of all shares
  const uint32_t here = ptx::shared_address(&all_here);
  if (cluster && part.rank == 0) {
    if (threadIdx.x == 0) {
      ptx::start_barrier(here, 1);
      ptx::publish_barriers();
      ptx::expect(here, __popc(part.shares) * part.heads * (a.e + 2) * 4);
    }
    __syncwarp();
  }
#else
  if (!works) return;
#endif

  const int first_head = static_cast<int>(threadIdx.x) * 4 / a.e;  // of the columns that the thread joins
  const int slot_size = slot_floats(part.heads, a.e);
  float *queries = shared, *key = shared + layout.key();
  // What earlier steps appended may be read at once; what this step did only when the kernel before is done.
  if (!fresh.k) ptx::dependency_wait();
  if (works) {
    Walk walk(a, part, fresh.k != nullptr);
    walk.load();
    for (int i = threadIdx.x; i < Walk::query_floats(a.e); i += kThreads) queries[i] = 0;
    __syncthreads();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (cluster) ptx::meet_cluster();
#endif
    if (fresh.k) ptx::dependency_wait();
    take_queries<Walk>(a, fresh, part, q, queries, key);
    __syncthreads();
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
    float* const slots = scratch + (int64_t{blockIdx.x} * a.h + part.head0) * slot_floats(kDealt, a.e);
#endif
    int buffer = 0;
#pragma unroll 1
    for (int share = part.rank; share < kDealt; share += part.ranks) {
      if (!kOne && !part.has_cuts(share)) continue;
      float* const peaks = shared + layout.peaks() + buffer * kWarps * layout.heads * 2;
      float* const sums = shared + layout.sums() + buffer * kWarps * layout.heads * a.e;
#pragma unroll 1
      while (walk.is_of(share))
        walk.step(fresh.k != nullptr, queries, key, shared + layout.scores() + warp * Walk::kWarpFloats,
                  sums + warp * part.heads * a.e);
      walk.leave(peaks + warp * part.heads * 2);
      __syncthreads();
      for (int i = threadIdx.x * 4, head = first_head; i < part.heads * a.e; i += kThreads * 4, head = i / a.e) {
        const Joined all =
            join<kAtOnce>([&](int w) { return reinterpret_cast<const float2*>(peaks)[w * part.heads + head]; },
                          [&](int w) { return *reinterpret_cast<const float4*>(sums + w * part.heads * a.e + i); });
        const float2 peak{all.largest, all.weight};
        const int to_peak = part.heads * a.e + head * 2;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        if (cluster) {
          const uint32_t slot = ptx::address_in(0, inbox + share * slot_size), at = ptx::address_in(0, &all_here);
          ptx::store_in_cluster(slot + i * 4, all.sum, at);
          if (i % a.e == 0) ptx::store_in_cluster(slot + to_peak * 4, peak, at);
          continue;
        }
        float* const slots = inbox;
#endif
        float* const slot = slots + share * slot_size;
        *reinterpret_cast<float4*>(slot + i) = all.sum;
        if (i % a.e == 0) *reinterpret_cast<float2*>(slot + to_peak) = peak;
      }
      if constexpr (kOne) break;
      if (layout.buffers > 1)
        buffer ^= 1;
      else
        __syncthreads();
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (part.rank > 0) return;
    if (!cluster) __syncthreads();
#else
    __shared__ bool last_to_arrive;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned before = 0;
      for (int rank = 0; rank < part.ranks; ++rank) before += part.works(rank);
      --before;
      last_to_arrive = atomicInc(arrived + blockIdx.x * gridDim.y + blockIdx.y, before) == before;  // and back to 0
    }
    __syncthreads();
    if (!last_to_arrive) return;
    __threadfence();
    join_row(a, part, first_head, slots, out, blocks);
#endif
  }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  else {
    ptx::meet_cluster();
    ptx::dependency_wait();
  }
  if (cluster) ptx::wait(here, 0);
  join_row(a, part, first_head, inbox, out, blocks);
#endif
}

// Thread blocks a row and kv head. They are all on the device at once, or the last ones would work alone; of numbers
// with which nobody has more shares the smallest (H200: 4 rows of 4096 positions, 8 shares: 46.2 us with 3, 32.9 with
// 4, 33.7 with 8, which do not all fit; 8 rows 48.8 with 3 and 60.9 with 4, which do not).
template <class Some>
int ranks_for(int pairs, int shares, size_t shared) {
  const auto fits = [&](int ranks) {
    if (is_hopper()) return pairs <= clusters_at_once(kThreads, shared, ranks, attend_cuts<Some>);
    int resident = 0;
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, attend_cuts<Some>, kThreads, shared),
               "counting thread blocks");
    return pairs * ranks <= resident * multiprocessors();
  };
  int ranks = shares;
  while (ranks > 1 && !fits(ranks)) --ranks;
  const int each = (shares + ranks - 1) / ranks;
  return (shares + each - 1) / each;
}

template <class One, class Some>
void launch_cuts(Stream stream, const AttentionArguments& a, const FreshHeads& fresh, const float* q,
                 const AttentionScratch& scratch, float* out, uint8_t* blocks) {
  // Of the 99 KB that the smallest multiprocessors since 8.0 have, 77 are enough without the inbox and a second buffer.
  const int most = (is_hopper() ? 200 : 96) * 1024;
  static const cudaError_t allowed = [&] {
    const auto allow = [&](auto kernel) {
      return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    };
    const cudaError_t first = allow(attend_cuts<One>);
    return first != cudaSuccess ? first : allow(attend_cuts<Some>);
  }();
  cuda_check(allowed, "allowing attention its shared memory");
  const int group = a.h / a.hk, passes = (group + Some::kHeads - 1) / Some::kHeads;
  const int at_once = scratch.parts ? static_cast<int>(std::min<int64_t>(a.n, scratch.rows)) : a.n,
            pairs = at_once * a.hk * passes, shares = std::min(scratch.cuts, kDealt);
  Layout layout{a.e, std::min(Some::kHeads, group), 1, Some::query_floats(a.e), Some::kWarpFloats};
  const auto bytes = [&] { return static_cast<size_t>(layout.bytes(is_hopper())); };
  const int ranks = ranks_for<Some>(pairs, shares, bytes());
  const bool one = ranks == shares;
  layout.buffers = 2;
  if (one || layout.bytes(is_hopper()) > most / Some::kResident) layout.buffers = 1;
  for (int row0 = 0; row0 < a.n; row0 += at_once)
    launch("attention", stream,
           LaunchShape{dim3(std::min(a.n - row0, at_once), a.hk * passes, ranks), kThreads, bytes(),
                       is_hopper() ? static_cast<unsigned>(ranks) : 1},
           one ? attend_cuts<One> : attend_cuts<Some>, a, fresh, q, row0, layout, scratch.parts, scratch.arrived, out,
           blocks);
}

template <int kWidest, typename... Rest>
void launch_halves(Stream stream, const Rest&... rest) {
  launch_cuts<HalvesWalk<SpansOfOne, kWidest>, HalvesWalk<SpansOfSome, kWidest>>(stream, rest...);
}
template <KvKind kind, int kLanes, typename... Rest>
void launch_multiplying(Stream stream, const Rest&... rest) {
  launch_cuts<MultiplyingWalk<SpansOfOne, kind, kLanes>, MultiplyingWalk<SpansOfSome, kind, kLanes>>(stream, rest...);
}
template <KvKind kind, typename... Rest>
void launch_walks(Stream stream, const AttentionArguments& a, const Rest&... rest) {
  if constexpr (kind == KvKind::f16) {
    if (a.e <= 64) return launch_halves<64>(stream, a, rest...);
    if (a.e <= 128) return launch_halves<128>(stream, a, rest...);
    launch_halves<256>(stream, a, rest...);
  } else {
    if (a.e <= 64) return launch_multiplying<kind, 8>(stream, a, rest...);
    if (a.e <= 128) return launch_multiplying<kind, 16>(stream, a, rest...);
    launch_multiplying<kind, 32>(stream, a, rest...);
  }
}

// Heads that a thread block serves at a time.
int heads_at_once(KvKind kind) {
  return kind == KvKind::f16 ? HalvesWalk<SpansOfOne, 64>::kHeads : MultiplyingWalk<SpansOfOne, KvKind::f32, 8>::kHeads;
}

}  // namespace

int64_t attention_parts(int h, int e) { return is_hopper() ? 0 : int64_t{h} * slot_floats(kDealt, e); }

bool attention_appends(KvKind kind, int h, int hk) { return h / hk <= heads_at_once(kind); }

bool attention_prepares(KvKind kind, int h, int hk, int e) {
  const int group = h / hk, heads = std::min(group, heads_at_once(kind));
  return group % heads == 0 && heads * e % kBlockColumns == 0;
}

void attend(Stream stream, const AttentionArguments& a, const FreshHeads& fresh, const float* q,
            const AttentionScratch& scratch, float* out, uint8_t* blocks) {
  switch (a.kind) {
    case KvKind::f32:
      return launch_walks<KvKind::f32>(stream, a, fresh, q, scratch, out, blocks);
    case KvKind::f16:
      return launch_walks<KvKind::f16>(stream, a, fresh, q, scratch, out, blocks);
    case KvKind::bf16:
      return launch_walks<KvKind::bf16>(stream, a, fresh, q, scratch, out, blocks);
    case KvKind::i8:
      return launch_walks<KvKind::i8>(stream, a, fresh, q, scratch, out, blocks);
    case KvKind::i4x2:
      return launch_walks<KvKind::i4x2>(stream, a, fresh, q, scratch, out, blocks);
  }
}

}  // namespace fidelio::cuda
