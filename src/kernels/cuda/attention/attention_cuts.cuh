// Attention over the paged cache.
//
// The context of a row is cut at multiples of kCut = 128 positions, wherever the row stands in its batch, and the cuts
// are dealt into kDealt = 8 shares, for all query heads that share a kv head. One to eight thread blocks have the
// shares among them: as many as are on the device at once, for each has its queries to turn before it begins.
//
//      cut      0 ................. 127 | 128 .............. 255 | 256 ... p
//      share    0                       | 1                      | 2            (cut 8 is share 0's again)
//      span     [w0][w1][w2] ...   [w7] | [w0] ...               | [w0]
//      warp     16 positions (kSpan) of each of its thread block's cuts, and needs nobody else until a share is done:
//               HalvesWalk for a cache of FP16, MultiplyingWalk for others
//      share    (m, l, o) of the warps joined in order and left where the row's shares meet (Shares)
//      row      the shares' joined in order, and the result prepared for the next product
//
// So the order of all sums depends on the row's position alone, not on how many thread blocks a row has. Where each
// sequence of the batch has one row, the same kernel also turns its queries and its key, and appends key and value:
// `fresh`.
#pragma once
#include <algorithm>

#include "kernels/cuda/attention/attention_shares.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {

// The arguments of attend().
struct AttentionCall {
  Stream stream;
  const AttentionArguments& a;
  const FreshHeads& fresh;
  const float* q;
  const AttentionScratch& scratch;
  float* out;
  uint8_t* blocks;
};

template <class Walk>
__device__ Part part_of(const AttentionArguments& a, int row0) {
  const int group = a.h / a.hk, passes = (group + Walk::kHeads - 1) / Walk::kHeads;
  Part part;
  part.row = row0 + blockIdx.x;
  part.sequence = a.sequence[part.row];
  part.kv_head = blockIdx.y / passes;
  part.head0 = part.kv_head * group + blockIdx.y % passes * Walk::kHeads;
  part.heads = min(Walk::kHeads, (part.kv_head + 1) * group - part.head0);
  part.last = a.positions[part.row];
  part.first = a.window > 0 ? max(0, part.last - a.window + 1) : 0;
  part.rank = blockIdx.z;
  part.ranks = Walk::kOne ? kDealt : static_cast<int>(gridDim.z);
  part.find_shares();
  return part;
}

// A row's columns i .. i + 3 of these heads, to memory, and prepared if they are whole blocks, of which a warp has one.
__device__ inline void finish(const AttentionArguments& a, const Part& part, int i, const Joined& all, float* out,
                              uint8_t* blocks) {
  const float inverse = 1 / all.weight;
  const float4 v = {all.sum.x * inverse, all.sum.y * inverse, all.sum.z * inverse, all.sum.w * inverse};
  const int column = part.head0 * a.e + i;
  *reinterpret_cast<float4*>(out + int64_t{part.row} * a.h * a.e + column) = v;
  if (blocks)
    prepare_block(v, part.row, a.n, column / kBlockColumns, (a.h * a.e + kBlockColumns - 1) / kBlockColumns, blocks);
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

// A share's (m, l, o) of all warps, to where shares meet.
template <class Walk, class Shares>
__device__ void leave_share(Walk& walk, const Shares& shares, int turn, int share, const Layout& layout,
                            float* shared) {
  const int warp = threadIdx.x / 32, heads = shares.part.heads;
  float* const peaks = shared + layout.peaks();
  int* const places = reinterpret_cast<int*>(shared + layout.places());
  const float* sums = walk.leave(peaks + warp * heads * 2);
  if (threadIdx.x % 32 == 0) places[warp] = static_cast<int>(sums - shared);
  __syncthreads();
  constexpr int kAtOnce = Walk::kOne ? kWarps : 4;
  shares.for_columns([&](int i) {
    const int head = i / shares.a.e, at = Walk::sum_at(shares.a.e, head, i % shares.a.e);
    shares.put(turn, share, i,
               join<kAtOnce>([&](int w) { return reinterpret_cast<const float2*>(peaks)[w * heads + head]; },
                             [&](int w) { return *reinterpret_cast<const float4*>(shared + places[w] + at); }));
  });
}

template <class Walk, bool kClusters>
__global__ void __launch_bounds__(kThreads, Walk::kResident)
    attend_cuts(AttentionArguments a, FreshHeads fresh, const float* q, int row0, Layout layout, float* scratch,
                uint32_t* arrived, float* out, uint8_t* blocks) {
  extern __shared__ __align__(16) float shared[];
  __shared__ __align__(8) uint64_t all_here;
  ptx::allow_dependents();
  const Part part = part_of<Walk>(a, row0);
  const bool works = part.works(part.rank), appends = fresh.k != nullptr;
  Shares<kClusters> shares{a, part, gridDim.z == 1, shared + layout.shares(),
                           scratch + (int64_t{blockIdx.x} * a.h + part.head0) * slot_floats(kDealt, a.e)};
  if (!works && !shares.leads_cluster()) return;
  shares.begin(&all_here);
  int turn = 0;
  float *queries = shared, *key = shared + layout.key();
  // What earlier steps appended may be read at once; what this step did only when the kernel before is done.
  if (!appends) ptx::dependency_wait();
  if (works) {
    Walk walk(a, part, appends, shared + layout.warps() + threadIdx.x / 32 * layout.own);
    walk.load();
    for (int i = threadIdx.x; i < Walk::query_floats(a.e); i += kThreads) queries[i] = 0;
    shares.start();
    __syncthreads();
    shares.meet();
    if (appends) ptx::dependency_wait();
    take_queries<Walk>(a, fresh, part, q, queries, key);
    __syncthreads();
    walk.take_queries(queries);
#pragma unroll 1
    for (int share = part.rank; share < kDealt; share += part.ranks) {
      if (!Walk::kOne && !part.has_cuts(share)) continue;
#pragma unroll 1
      while (walk.is_of(share)) walk.step(appends, key);
      leave_share(walk, shares, turn++, share, layout, shared);
      if (!Walk::kOne || shares.alone) __syncthreads();
      if constexpr (Walk::kOne) break;
    }
  } else {  // the first of a cluster, where a window begins late
    shares.meet();
    if (appends) ptx::dependency_wait();
  }
  if (!shares.joins(arrived)) return;
  shares.for_columns([&](int i) { finish(a, part, i, shares.joined(turn, i), out, blocks); });
}

// How a row's shares are dealt to thread blocks: to clusters of as many as are on the device at once, or the last ones
// would work alone; else, as many as are, apart. Of numbers with which nobody has more shares the smallest.
inline int evenly(int ranks, int shares) {
  const int each = (shares + ranks - 1) / ranks;
  return (shares + each - 1) / each;
}
// Walks of a cluster's thread blocks, with one share each; with one of one cut, where two are to share a
// multiprocessor; with several shares; and of thread blocks apart.
template <class One_, class Short_, class Some_, class Apart_>
struct Walks {
  using One = One_;
  using Short = Short_;
  using Some = Some_;
  using Apart = Apart_;
};

template <class W>
struct Launcher {
  AttentionCall call;
  int heads, passes;  // of a thread block; thread blocks that a kv head needs
  int shares, pairs;  // of a row; of rows and thread blocks with one share each

  explicit Launcher(const AttentionCall& of) : call(of) {
    const int group = of.a.h / of.a.hk;
    heads = std::min(W::Some::kHeads, group);
    passes = (group + heads - 1) / heads;
    shares = std::min(of.scratch.cuts, kDealt);
    pairs = of.a.n * of.a.hk * passes;
  }
  template <class Walk>
  Layout layout() const {
    return {call.a.e, heads, Walk::query_floats(call.a.e), Walk::own_floats(heads, call.a.e)};
  }
  template <class Walk, bool kClusters>
  static void allow() {  // of the 99 KB that the smallest multiprocessors since 8.0 have
    static const cudaError_t allowed = cudaFuncSetAttribute(
        attend_cuts<Walk, kClusters>, cudaFuncAttributeMaxDynamicSharedMemorySize, (is_hopper() ? 226 : 96) * 1024);
    cuda_check(allowed, "allowing attention its shared memory");
  }
  template <class Walk, bool kClusters>
  void launch_rows(int ranks, int at_once) const {
    const Layout layout = this->layout<Walk>();
    for (int row0 = 0; row0 < call.a.n; row0 += at_once)
      launch("attention", call.stream,
             LaunchShape{dim3(std::min(call.a.n - row0, at_once), call.a.hk * passes, ranks), kThreads,
                         layout.bytes(ranks, kClusters), kClusters ? static_cast<unsigned>(ranks) : 1},
             attend_cuts<Walk, kClusters>, call.a, call.fresh, call.q, row0, layout, call.scratch.parts,
             call.scratch.arrived, call.out, call.blocks);
  }
  template <class Walk>
  bool launched_as_clusters(int ranks) const {
    constexpr int kMostThreads = 2048;                                                           // of a multiprocessor
    if (ranks > 1 && pairs * ranks > kMostThreads / kThreads * multiprocessors()) return false;  // asks nobody
    allow<Walk, true>();
    const size_t shared = layout<Walk>().bytes(ranks, true);
    if (ranks > 1 && pairs > clusters_at_once(kThreads, shared, ranks, attend_cuts<Walk, true>)) return false;
    launch_rows<Walk, true>(ranks, call.a.n);
    return true;
  }
  void launch_apart() const {
    using Walk = typename W::Apart;
    allow<Walk, false>();
    int resident = 0;
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, attend_cuts<Walk, false>, kThreads,
                                                             layout<Walk>().bytes(1, false)),
               "counting thread blocks");
    const int ranks = evenly(std::clamp(resident * multiprocessors() / pairs, 1, shares), shares);
    launch_rows<Walk, false>(ranks,
                             ranks == 1 ? call.a.n : static_cast<int>(std::min<int64_t>(call.a.n, call.scratch.rows)));
  }
  void attend() const {
    if (is_hopper()) {
      if (launched_as_clusters<typename W::One>(shares)) return;
      if (call.scratch.cuts <= kDealt && launched_as_clusters<typename W::Short>(shares)) return;
      for (int ranks = shares - 1; ranks > 1; --ranks)
        if (evenly(ranks, shares) == ranks && launched_as_clusters<typename W::Some>(ranks)) return;
    }
    launch_apart();
  }
};

template <class W>
void attend_by(const AttentionCall& call) {
  const Launcher<W> launcher(call);
  launcher.attend();
}

// ---- By the kind of cache: attention_halves.cu, attention_integers.cu.
bool has_halves(KvKind kind, int e);
void attend_halves(const AttentionCall& call);
void attend_integers(const AttentionCall& call);

}  // namespace fidelio::cuda
