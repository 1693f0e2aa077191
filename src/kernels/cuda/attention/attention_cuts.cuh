// This file computes attention over the paged cache.
//
// The context of a row is cut at multiples of kCut = 128 positions, wherever the row stands in its batch. The cuts
// are divided into kDealt = 8 shares, for all query heads that share a kv head. One to eight thread blocks divide the
// shares among them. There are as many as can run at once, because each has to rotate its queries before it begins.
//
//      cut      0 ................. 127 | 128 .............. 255 | 256 ... p
//      share    0                       | 1                      | 2            (cut 8 is share 0's again)
//      span     [w0][w1][w2] ...   [w7] | [w0] ...               | [w0]
//      warp     16 positions (kSpan) of each of its thread block's cuts; warps are independent until a share is done:
//               HalvesWalk for a cache of FP16, MultiplyingWalk for others
//      share    (m, l, o) of the warps, joined in order and left where the row's shares meet (Shares)
//      row      those of the shares, joined in order, and the result prepared for the next product
//
// So the order of all sums depends on the row's position alone, and not on how many thread blocks a row has. The same
// kernel can also rotate queries and keys and append keys and values (`fresh`).
//
// Several rows of a sequence (AttentionUnits) can share thread blocks, which read its keys and values once. Their
// heads are queries of the same products, each with sums of its own, in the order that it has alone. Positions that
// only some of the rows see have weight zero in the others.
#pragma once
#include "kernels/cuda/attention/attention_shares.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {

// Returns the part of this thread block. `first` is the launch's first row or unit.
template <class Walk>
__device__ Part part_of(const AttentionArguments& a, int first) {
  const int group = a.h / a.hk, passes = (group + Walk::kHeads - 1) / Walk::kHeads;
  Part part;
  part.row = first + blockIdx.x, part.rows = 1, part.before = 0;
  if constexpr (Walk::kTogether) {
    const int32_t* unit = a.units.table + 3 * part.row;
    part.row = unit[0], part.rows = unit[1], part.before = unit[2];
  }
  part.sequence = a.sequence[part.row];
  part.kv_head = blockIdx.y / passes;
  part.head0 = part.kv_head * group + blockIdx.y % passes * Walk::kHeads;
  part.heads = min(Walk::kHeads, (part.kv_head + 1) * group - part.head0);
  const int position = a.positions[part.row];
  part.last = position + part.rows - 1;
  part.first = a.window > 0 ? max(0, position - a.window + 1) : 0;
  part.rank = blockIdx.z;
  part.ranks = Walk::kOne ? kDealt : static_cast<int>(gridDim.z);
  part.find_shares();
  return part;
}

// Writes columns i .. i + 3 of these queries to memory. It also prepares them for the next product if they are whole
// blocks, of which a warp has one.
__device__ inline void finish(const AttentionArguments& a, const Part& part, int i, Joined all, float* out,
                              const PreparedRows& prepared) {
  const int width = part.heads * a.e, here = part.rows == 1 ? 0 : i / width, row = part.row + here,
            column = part.head0 * a.e + i - here * width;
  if (a.sinks) all.add({a.sinks[column / a.e] * 1.44269504088896341f, 1}, {0, 0, 0, 0});
  const float inverse = 1 / all.weight;
  const float4 v = {all.sum.x * inverse, all.sum.y * inverse, all.sum.z * inverse, all.sum.w * inverse};
  *reinterpret_cast<float4*>(out + int64_t{row} * a.h * a.e + column) = v;
  if (prepared.blocks)
    prepare_block(v, row, a.n, column / kBlockColumns, (a.h * a.e + kBlockColumns - 1) / kBlockColumns, prepared);
}

// Takes the keys and values that a step appends into shared memory (key 0, value 0, key 1, ...), as far as the thread
// block's rows see them and it has their positions. It also writes those of its own rows into the cache.
template <class Walk>
__device__ __forceinline__ void take_fresh(const AttentionArguments& a, const FreshHeads& fresh, const Part& part,
                                           int number, float* keys) {
  const int position = part.first_fresh() + number / 2, row = part.row - part.before + number / 2;
  const int64_t from = (int64_t{row} * a.hk + part.kv_head) * a.e;
  const bool is_value = number % 2, is_own = number / 2 >= part.before && part.has(position);
  const auto put = Walk::put_fresh(a, part, position, number, is_own, keys);
  if (!is_value)
    return turn(fresh.k + from, fresh.k_norm, fresh.eps,
                reinterpret_cast<const float2*>(fresh.turns) + int64_t{row} * (a.e / 2), a.e, put);
  for (int i = threadIdx.x % 32 * 2; i < a.e; i += 64) put(i, *reinterpret_cast<const float2*>(fresh.v + from + i));
}

// Takes queries, rotated if they are fresh, and appended keys and values into shared memory. It must follow the end
// of the kernel before.
template <class Walk>
__device__ void take_queries(const AttentionArguments& a, const FreshHeads& fresh, const Part& part, const float* q,
                             float* queries, float* keys) {
  // Weights are powers of two from here on.
  const float scale = rsqrtf(static_cast<float>(a.e)) * 1.44269504088896341f;
  const auto row_of = [&](int query) { return part.row + (part.rows == 1 ? 0 : query / part.heads); };
  const auto from = [&](int query) {
    const int head = part.rows == 1 ? query : query % part.heads;
    return q + (int64_t{row_of(query)} * a.h + part.head0 + head) * a.e;
  };
  const auto put = [&](int query) {
    return [=](int column, float2 pair) {
      Walk::put_query(queries, a.e, query, column, {__fmul_rn(pair.x, scale), __fmul_rn(pair.y, scale)});
    };
  };
  if (!fresh.k) {
    for (int i = threadIdx.x * 2; i < part.queries() * a.e; i += kThreads * 2)
      put(i / a.e)(i % a.e, *reinterpret_cast<const float2*>(from(i / a.e) + i % a.e));
    return;
  }
  const int others = part.has(part.last) || part.has(part.first_fresh()) ? 2 * part.fresh() : 0;
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < part.queries() + others; i += kWarps)
    if (i < part.queries())
      turn(from(i), fresh.q_norm, fresh.eps,
           reinterpret_cast<const float2*>(fresh.turns) + int64_t{row_of(i)} * (a.e / 2), a.e, put(i));
    else
      take_fresh<Walk>(a, fresh, part, i - part.queries(), keys);
}

// Leaves a share's (m, l, o) of all warps where shares meet. It goes tile by tile of queries, for which there is
// room.
template <class Walk, class Shares>
__device__ void leave_share(Walk& walk, const Shares& shares, int turn, int share, const Layout& layout,
                            float* shared) {
  const int warp = threadIdx.x / 32, queries = shares.part.queries();
  float2* const peaks = reinterpret_cast<float2*>(shared + layout.peaks());
  int* const places = reinterpret_cast<int*>(shared + layout.places());
#pragma unroll
  for (int tile = 0; tile < Walk::kTiles; ++tile) {
    const int first = tile * Walk::kHeads, end = min(queries, first + Walk::kHeads);
    if (tile > 0) {
      if (first >= queries) break;
      __syncthreads();
    }
    const float* sums = walk.leave(tile, end - first, peaks + warp * queries + first);
    if (threadIdx.x % 32 == 0) places[warp] = static_cast<int>(sums - shared);
    __syncthreads();
    constexpr int kAtOnce = Walk::kOne ? kWarps : 4;
    shares.for_columns(first, end, [&](int i) {
      const int query = i / shares.a.e, at = Walk::sum_at(shares.a.e, query - first, i % shares.a.e);
      shares.put(turn, share, i,
                 join<kAtOnce>([&](int w) { return peaks[w * queries + query]; },
                               [&](int w) { return *reinterpret_cast<const float4*>(shared + places[w] + at); }));
    });
  }
}

template <class Walk, bool kClusters>
__global__ void __launch_bounds__(kThreads, Walk::kResident)
    attend_cuts(AttentionArguments a, FreshHeads fresh, const float* q, int first, Layout layout, float* scratch,
                uint32_t* arrived, float* out, PreparedRows prepared) {
  extern __shared__ __align__(16) float shared[];
  __shared__ __align__(8) uint64_t all_here;
  ptx::allow_dependents();
  const Part part = part_of<Walk>(a, first);
  if (Walk::kTogether && part.rows == 0) return;
  const bool works = part.works(part.rank), appends = fresh.k != nullptr;
  Shares<kClusters, Walk::kTogether> shares{
      a, part, gridDim.z == 1, shared + layout.meeting(),
      scratch + (int64_t{blockIdx.x} * a.units.rows * a.h + part.head0 * part.rows) * slot_floats(kDealt, a.e)};
  if (!works && !shares.has_chunks()) return;
  shares.begin(&all_here);
  int turn = 0;
  float *queries = shared, *keys = shared + layout.key();
  // Keys and values that earlier steps appended may be read at once. Those of this step may be read only when the
  // kernel before has ended.
  if (!appends) ptx::dependency_wait();
  if (works) {
    Walk walk(a, part, appends, shared + layout.warps() + threadIdx.x / 32 * layout.own);
    walk.load();
    for (int i = threadIdx.x; i < Walk::query_floats(a.e); i += kThreads) queries[i] = 0;
    shares.start();
    __syncthreads();
    shares.meet();
    if (appends) ptx::dependency_wait();
    take_queries<Walk>(a, fresh, part, q, queries, keys);
    __syncthreads();
    walk.take_queries(queries);
#pragma unroll 1
    for (int share = part.rank; share < kDealt; share += part.ranks) {
      if (!Walk::kOne && !part.has_cuts(share)) continue;
#pragma unroll 1
      while (walk.is_of(share)) walk.step(appends, keys);
      leave_share(walk, shares, turn++, share, layout, shared);
      if (!Walk::kOne || shares.alone) __syncthreads();
      if constexpr (Walk::kOne) break;
    }
  } else {  // this thread block has nothing to attend to, but chunks to join
    shares.meet();
    if (appends) ptx::dependency_wait();
  }
  if (!shares.joins(arrived)) return;
  shares.for_joined([&](int i) { finish(a, part, i, shares.joined(turn, i), out, prepared); });
}

}  // namespace fidelio::cuda
