// Attention over the paged cache.
//
// The context of a row is cut at multiples of kCut = 128 positions, wherever the row stands in its batch, and the cuts
// are dealt to kDealt = 8 thread blocks, a cluster, which serve all query heads that share a kv head:
//
//      cut    0 ................. 127 | 128 .............. 255 | 256 ... p
//      dealt  thread block 0          | thread block 1         | 2           (cut 8 is thread block 0's again)
//      span   [w0][w1][w2] ...   [w7] | [w0] ...               | [w0]
//      warp   16 positions (kSpan) of each of its thread block's cuts, and needs nobody else until all are done: keys
//             and values to registers at once, the next ones while it works on these; dots over kLanes lanes a
//             position, eight columns a lane; softmax with a lane a position; p v, eight columns a lane
//      block  (m, l, o) of its warps joined in order and left with thread block 0 of the cluster
//      row    thread block 0 joins them in order and leaves the result prepared for the next product
//
// So one row is spread over up to 8 hk thread blocks, and the order of all sums depends on the row's position alone.
// Before Hopper thread blocks leave their parts in memory and the last to arrive joins them. Where each sequence of the
// batch has one row, the same kernel also turns its queries and its key, and appends key and value: `fresh`.
#include <algorithm>

#include "kernels/cuda/kv_cache.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prepare.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kSpan = 16, kWarps = kCut / kSpan, kThreads = kWarps * 32;
static_assert(kWarps == kDealt);  // join() takes as many of either

// Each of N values summed over lanes that differ in the bits from kFrom down to kTo, by a tree. Afterwards a lane holds
// the sums of some neighbouring ones, the first of which is returned, in the front of `v`.
template <int N, int kFrom, int kTo>
__device__ __forceinline__ int reduce_scatter(float (&v)[N]) {
  int held = N, from = 0;
#pragma unroll
  for (int d = kFrom; d >= kTo; d /= 2) {
    if (held == 1) {
      v[0] += __shfl_xor_sync(~0u, v[0], d);
      continue;
    }
    held /= 2;
    const bool upper = threadIdx.x & d;
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      if (i < held) {
        const float give = upper ? v[i] : v[i + held], keep = upper ? v[i + held] : v[i];
        v[i] = keep + __shfl_xor_sync(~0u, give, d);
      }
    if (upper) from += held;
  }
  return from;
}

// N neighbouring floats that are read and written together.
template <int N>
struct alignas(N * 4) Few {
  float of[N];
};

// Which heads, row, positions and cuts a thread block works for.
struct Part {
  int row, kv_head, head0, heads, first, last, rank;
  __device__ int first_cut_of(int of_rank) const {
    const int cut = first / kCut;
    return cut + ((of_rank - cut) & (kDealt - 1));
  }
  __device__ bool works(int of_rank) const { return first_cut_of(of_rank) <= last / kCut; }
};

// What a thread block leaves: [head][e], then [head] {m, l}; and room, for alignment.
__host__ __device__ constexpr int slot_floats(int heads, int e) { return heads * (e + 4); }

// Shared memory, in floats.
template <int kHeads>
struct Layout {
  int e;
  __host__ __device__ int queries() const { return 0; }
  __host__ __device__ int key() const { return kHeads * e; }                              // and the value after it
  __host__ __device__ int scores() const { return key() + 2 * e; }                        // [warp][position][head]
  __host__ __device__ int factors() const { return scores() + kWarps * kSpan * kHeads; }  // [warp][head]
  __host__ __device__ int peaks() const { return factors() + kWarps * kHeads; }           // [warp][head] {m, l}
  __host__ __device__ int sums() const { return peaks() + kWarps * kHeads * 2; }          // [warp][head][e]
  __host__ __device__ int inbox() const { return sums() + kWarps * kHeads * e; }          // of thread block 0: slots
  __host__ __device__ int bytes(bool cluster) const {
    return (inbox() + (cluster ? kDealt * slot_floats(kHeads, e) : 0)) * 4;
  }
};

// A warp's spans: softmax numerators and sums into shared memory.
template <KvKind kind, int kLanes, int kHeads>
struct Walk {
  static constexpr int kAtOnce = 32 / kLanes, kSteps = kSpan / kAtOnce;  // positions a step
  static constexpr bool kHeld = sizeof(Stored8<kind>) * kSteps <= 128;   // keys and values of the span fit in registers
  static constexpr int kBatch = std::min(kSteps, kLanes >= kHeads ? kLanes / kHeads : 1);
  static constexpr int kPairs = (kHeads + 1) / 2;
  const AttentionArguments& a;
  const Part& part;
  int sequence;
  int readable;   // the last position that is in the cache
  int begin;      // of the span
  int64_t slot0;  // of that position
  Stored8<kind> keys[kHeld ? kSteps : 1], values[kHeld ? kSteps : 1];
  float peak[kPairs], weight[kPairs];  // of the spans so far, by the head of the lane's half of the warp

  __device__ Walk(const AttentionArguments& arguments, const Part& of, bool fresh)
      : a(arguments), part(of), sequence(a.sequence[of.row]), readable(fresh ? of.last - 1 : of.last) {
    begin = of.first_cut_of(of.rank) * kCut + static_cast<int>(threadIdx.x) / 32 * kSpan;
    if (begin + kSpan <= of.first) begin += kDealt * kCut;
    slot0 = slot_at(begin);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) peak[i] = -INFINITY, weight[i] = 0;
  }
  __device__ int64_t slot_at(int position) const {
    return position <= part.last ? slot_of(a, sequence, position, part.kv_head) : 0;
  }
  __device__ int column() const { return threadIdx.x % kLanes * 8; }
  __device__ int in_span(int step) const { return step * kAtOnce + threadIdx.x % 32 / kLanes; }
  __device__ Stored8<kind> loaded(bool key, int step, int from, int64_t slot) const {
    Stored8<kind> s;
    s.clear();
    const int position = from + in_span(step);
    if (position <= readable && position >= part.first && column() < a.e)
      s.load(key ? a.keys : a.values, key ? a.key_scales : a.value_scales, slot + in_span(step), a.e, column());
    return s;
  }
  __device__ void load_keys(int from, int64_t slot) {
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) keys[step] = loaded(true, step, from, slot);
    }
  }
  __device__ void load_values(int from, int64_t slot) {
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) values[step] = loaded(false, step, from, slot);
    }
  }
  // The row's own key and value (FP32, in shared memory) into the cache and, as they are there, among the span's.
  __device__ void append(const float* key) {
    float eight[8];
    Stored8<kind> stored[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      eight_of(key + i * a.e, column(), a.e, eight);
      stored[i].template take<kLanes>(eight, column() < a.e);
      if (column() >= a.e) stored[i].clear();
    }
    const int64_t slot = slot0 + part.last - begin;
    if (threadIdx.x % 32 < kLanes && column() < a.e) {
      stored[0].save(a.keys, a.key_scales, slot, a.e, column());
      stored[1].save(a.values, a.value_scales, slot, a.e, column());
    }
    readable = part.last;
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        if (begin + in_span(step) == part.last) keys[step] = stored[0], values[step] = stored[1];
    } else {
      __syncwarp();
    }
  }

  __device__ void scores_of(const float* queries, float* scores) const {
    float query[kHeads][8];
#pragma unroll
    for (int head = 0; head < kHeads; ++head) eight_of(queries + head * a.e, column(), a.e, query[head]);
#pragma unroll
    for (int step0 = 0; step0 < kSteps; step0 += kBatch) {
      float dots[kBatch * kHeads] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float key[8];
        (kHeld ? keys[kHeld ? step0 + i : 0] : loaded(true, step0 + i, begin, slot0)).values(key);
#pragma unroll
        for (int head = 0; head < kHeads; ++head)
#pragma unroll
          for (int j = 0; j < 8; ++j) dots[i * kHeads + head] = fmaf(query[head][j], key[j], dots[i * kHeads + head]);
      }
      const int from = reduce_scatter<kBatch * kHeads, kLanes / 2, 1>(dots);
      constexpr int kMine = kBatch * kHeads > kLanes ? kBatch * kHeads / kLanes : 1;
#pragma unroll
      for (int i = 0; i < kMine; ++i)
        scores[in_span(step0 + (from + i) / kHeads) * kHeads + (from + i) % kHeads] = dots[i];
    }
  }
  // A lane a position, half of the warp every second head. What was summed before shrinks by `factors`.
  __device__ void weigh(float* scores, float* factors) {
    const int lane = threadIdx.x % 32, position = lane % kSpan;
    const bool seen = begin + position <= part.last && begin + position >= part.first;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int head = kHeads == 1 ? 0 : 2 * i + lane / kSpan;
      const float score = seen ? scores[position * kHeads + head] : -INFINITY;
      float largest = fmaxf(score, peak[i]);
#pragma unroll
      for (int d = kSpan / 2; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
      const float share = exp2f(score - largest), factor = exp2f(peak[i] - largest);
      float sum = share;
#pragma unroll
      for (int d = kSpan / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
      scores[position * kHeads + head] = share;
      if (position == 0) factors[head] = factor;
      peak[i] = largest;
      weight[i] = fmaf(weight[i], factor, sum);
    }
  }
  __device__ void add_values(const float* scores, const float* factors, bool first, float* sums) const {
    using Shares = Few<std::min(kHeads, 4)>;
    float out[kHeads * 8] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float value[8];
      (kHeld ? values[kHeld ? step : 0] : loaded(false, step, begin, slot0)).values(value);
      const auto* shares = reinterpret_cast<const Shares*>(scores + in_span(step) * kHeads);
#pragma unroll
      for (int head0 = 0; head0 < kHeads; head0 += 4) {
        const Shares four = shares[head0 / 4];
#pragma unroll
        for (int head = head0; head < std::min(head0 + 4, kHeads); ++head)
#pragma unroll
          for (int j = 0; j < 8; ++j) out[head * 8 + j] = fmaf(four.of[head - head0], value[j], out[head * 8 + j]);
      }
    }
    const int from = reduce_scatter<kHeads * 8, 16, kLanes>(out);
    constexpr int kMine = kHeads * 8 * kLanes / 32, kWidth = std::min(kMine, 4);
    using Columns = Few<kWidth>;
    if (column() >= a.e) return;
#pragma unroll
    for (int i = 0; i < kMine; i += kWidth) {
      const int head = (from + i) / 8;
      auto* to = reinterpret_cast<Columns*>(sums + head * a.e + column() + (from + i) % 8);
      const float factor = factors[head];
      Columns sum = {};
      if (!first) sum = *to;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum.of[j] = fmaf(sum.of[j], factor, out[i + j]);
      *to = sum;
    }
  }

  // All spans, of which the first one's keys and values have been asked for.
  __device__ void attend(bool fresh, const float* queries, const float* key, float* scores, float* factors,
                         float* peaks, float* sums) {
    bool first = true;
    int64_t next_slot = slot_at(begin + kDealt * kCut);
#pragma unroll 1
    while (begin <= part.last) {
      const int next = begin + kDealt * kCut;
      if (fresh && part.last < begin + kSpan) append(key);
      scores_of(queries, scores);
      load_keys(next, next_slot);
      __syncwarp();
      weigh(scores, factors);
      __syncwarp();
      add_values(scores, factors, first, sums);
      load_values(next, next_slot);
      first = false;
      begin = next;
      slot0 = next_slot;
      next_slot = slot_at(begin + kDealt * kCut);
      __syncwarp();
    }
    const int lane = threadIdx.x % 32;
    if (lane % kSpan == 0)
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int head = kHeads == 1 ? 0 : 2 * i + lane / kSpan;
        reinterpret_cast<float2*>(peaks)[head] = {peak[i], weight[i]};
      }
  }
};

// (m, l, o) of parts that have their own, four columns of a head: for each part i, peak(i) is {m, l}, sum(i) is o; l of
// a part that saw nothing is 0.
struct Joined {
  float largest = -INFINITY, weight = 0;
  float4 sum{0, 0, 0, 0};
};
template <typename Peak, typename Sum>
__device__ __forceinline__ Joined join(const Peak& peak, const Sum& sum) {
  float2 peaks[kDealt];
  float4 sums[kDealt];
  Joined all;
#pragma unroll
  for (int i = 0; i < kDealt; ++i) {
    peaks[i] = peak(i);
    sums[i] = peaks[i].y > 0 ? sum(i) : float4{0, 0, 0, 0};
    all.largest = fmaxf(all.largest, peaks[i].x);
  }
#pragma unroll
  for (int i = 0; i < kDealt; ++i) {
    const float factor = exp2f(peaks[i].x - all.largest);
    all.weight = fmaf(factor, peaks[i].y, all.weight);
    all.sum.x = fmaf(factor, sums[i].x, all.sum.x);
    all.sum.y = fmaf(factor, sums[i].y, all.sum.y);
    all.sum.z = fmaf(factor, sums[i].z, all.sum.z);
    all.sum.w = fmaf(factor, sums[i].w, all.sum.w);
  }
  return all;
}

// A row's columns i .. i + 3 of these heads, to memory, and prepared if they are whole blocks, of which a warp has one.
__device__ void finish(const AttentionArguments& a, const Part& part, int i, const Joined& all, float* out,
                       uint8_t* blocks) {
  const float4 v = {all.sum.x / all.weight, all.sum.y / all.weight, all.sum.z / all.weight, all.sum.w / all.weight};
  const int column = part.head0 * a.e + i;
  *reinterpret_cast<float4*>(out + int64_t{part.row} * a.h * a.e + column) = v;
  if (blocks)
    prepare_block(v, part.row, a.n, column / kBlockColumns, (a.h * a.e + kBlockColumns - 1) / kBlockColumns, blocks);
}

// Joins what the thread blocks of a row left in `slots`.
__device__ void join_row(const AttentionArguments& a, const Part& part, const float* slots, float* out,
                         uint8_t* blocks) {
  const int slot = slot_floats(part.heads, a.e);
  for (int i = threadIdx.x * 4; i < part.heads * a.e; i += kThreads * 4)
    finish(a, part, i,
           join(
               [&](int rank) {
                 if (!part.works(rank)) return float2{-INFINITY, 0};
                 return *reinterpret_cast<const float2*>(slots + rank * slot + part.heads * a.e + i / a.e * 2);
               },
               [&](int rank) { return *reinterpret_cast<const float4*>(slots + rank * slot + i); }),
           out, blocks);
}

template <KvKind kind, int kLanes, int kHeads>
__global__ void __launch_bounds__(kThreads, kind == KvKind::f16 && kLanes * kHeads <= 64 ? 2 : 1)
    attend_cuts(AttentionArguments a, FreshHeads fresh, const float* q, int row0, float* scratch, uint32_t* arrived,
                float* out, uint8_t* blocks) {
  extern __shared__ __align__(16) float shared[];
  ptx::allow_dependents();
  const int warp = threadIdx.x / 32, group = a.h / a.hk, passes = (group + kHeads - 1) / kHeads,
            ranks = static_cast<int>(gridDim.z);
  Part part;
  part.row = row0 + blockIdx.x;
  part.kv_head = blockIdx.y / passes;
  part.head0 = part.kv_head * group + blockIdx.y % passes * kHeads;
  part.heads = min(kHeads, (part.kv_head + 1) * group - part.head0);
  part.last = a.positions[part.row];
  part.first = a.window > 0 ? max(0, part.last - a.window + 1) : 0;
  part.rank = blockIdx.z;
  const bool works = part.works(part.rank);
#if __CUDA_ARCH__ >= 900
  if (!works && part.rank > 0) return;
  if (ranks > 1) ptx::cluster_arrive();  // having begun
#else
  if (!works) return;
#endif

  const Layout<kHeads> layout{a.e};
  const float scale = rsqrtf(static_cast<float>(a.e)) * 1.44269504088896341f;  // powers of two from here on
  float *queries = shared + layout.queries(), *peaks = shared + layout.peaks(), *sums = shared + layout.sums();
  const float* from = q + (int64_t{part.row} * a.h + part.head0) * a.e;
  // What earlier steps appended may be read at once; what this step did only when the kernel before is done.
  if (!fresh.k) ptx::dependency_wait();
  if (works) {
    Walk<kind, kLanes, kHeads> walk(a, part, fresh.k != nullptr);
    walk.load_keys(walk.begin, walk.slot0);
    walk.load_values(walk.begin, walk.slot0);
    if (fresh.k) ptx::dependency_wait();
    float* key = shared + layout.key();
    if (fresh.k) {
      const float2* turns = reinterpret_cast<const float2*>(fresh.turns) + int64_t{part.row} * (a.e / 2);
      const int64_t at = (int64_t{part.row} * a.hk + part.kv_head) * a.e;
      const int others = part.last / kCut % kDealt == part.rank ? 2 : 0;  // the key and the value
      for (int head = warp; head < part.heads + others; head += kWarps)
        if (head < part.heads)
          turn(from + head * a.e, fresh.q_norm, fresh.eps, turns, a.e, scale, queries + head * a.e);
        else if (head == part.heads)
          turn(fresh.k + at, fresh.k_norm, fresh.eps, turns, a.e, 1, key);
        else
          for (int i = threadIdx.x % 32; i < a.e; i += 32) key[a.e + i] = fresh.v[at + i];
    } else {
      for (int i = threadIdx.x; i < part.heads * a.e; i += kThreads) queries[i] = from[i] * scale;
    }
    for (int i = part.heads * a.e + threadIdx.x; i < kHeads * a.e; i += kThreads) queries[i] = 0;
    __syncthreads();
    walk.attend(fresh.k != nullptr, queries, key, shared + layout.scores() + warp * kSpan * kHeads,
                shared + layout.factors() + warp * kHeads, peaks + warp * kHeads * 2, sums + warp * kHeads * a.e);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (ranks > 1) ptx::cluster_wait();
    const uint32_t slot = ptx::address_in(0, shared + layout.inbox() + part.rank * slot_floats(part.heads, a.e));
#else
    float* slots = scratch + (int64_t{blockIdx.x} * a.h + part.head0) * slot_floats(kDealt, a.e);
    float* slot = slots + part.rank * slot_floats(part.heads, a.e);
#endif
    for (int i = threadIdx.x * 4; i < part.heads * a.e; i += kThreads * 4) {
      const int head = i / a.e;
      const Joined all = join([&](int w) { return reinterpret_cast<const float2*>(peaks)[w * kHeads + head]; },
                              [&](int w) { return *reinterpret_cast<const float4*>(sums + w * kHeads * a.e + i); });
      if (ranks == 1) {
        finish(a, part, i, all, out, blocks);
        continue;
      }
      const float2 peak{all.largest, all.weight};
#if __CUDA_ARCH__ >= 900
      ptx::store_in_cluster(slot + i * 4, all.sum);
      if (i % a.e == 0) ptx::store_in_cluster(slot + (part.heads * a.e + head * 2) * 4, peak);
#else
      *reinterpret_cast<float4*>(slot + i) = all.sum;
      if (i % a.e == 0) *reinterpret_cast<float2*>(slot + part.heads * a.e + head * 2) = peak;
#endif
    }
    if (ranks == 1) return;
#if __CUDA_ARCH__ >= 900
    ptx::cluster_arrive();
    if (part.rank > 0) return;
#else
    __shared__ bool last_to_arrive;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const auto before = static_cast<unsigned>(min(ranks, part.last / kCut - part.first / kCut + 1) - 1);
      last_to_arrive = atomicInc(arrived + blockIdx.x * gridDim.y + blockIdx.y, before) == before;  // and back to 0
    }
    __syncthreads();
    if (!last_to_arrive) return;
    __threadfence();
    join_row(a, part, slots, out, blocks);
#endif
  }
#if __CUDA_ARCH__ >= 900
  else {
    ptx::dependency_wait();
    ptx::cluster_wait();
    ptx::cluster_arrive();
  }
  ptx::cluster_wait();
  join_row(a, part, shared + layout.inbox(), out, blocks);
#endif
}

template <KvKind kind, int kLanes, int kHeads>
void launch_cuts(Stream stream, const AttentionArguments& a, const FreshHeads& fresh, const float* q,
                 const AttentionScratch& scratch, float* out, uint8_t* blocks) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(attend_cuts<kind, kLanes, kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 * 1024);
  cuda_check(allowed, "allowing attention its shared memory");
  const int group = a.h / a.hk, passes = (group + kHeads - 1) / kHeads;
  const auto ranks = static_cast<unsigned>(std::min(scratch.cuts, kDealt));
  const bool cluster = is_hopper() && ranks > 1;
  const auto shared = static_cast<size_t>(Layout<kHeads>{a.e}.bytes(cluster));
  const int at_once = scratch.parts ? static_cast<int>(std::min<int64_t>(a.n, scratch.rows)) : a.n;
  for (int row0 = 0; row0 < a.n; row0 += at_once)
    launch_clusters("attention", stream, dim3(std::min(a.n - row0, at_once), a.hk * passes, ranks), cluster ? ranks : 1,
                    kThreads, shared, attend_cuts<kind, kLanes, kHeads>, a, fresh, q, row0, scratch.parts,
                    scratch.arrived, out, blocks);
}

template <KvKind kind, int kHeads, typename... Rest>
void launch_lanes(Stream stream, const AttentionArguments& a, const Rest&... rest) {
  if (a.e <= 64) return launch_cuts<kind, 8, kHeads>(stream, a, rest...);
  if (a.e <= 128) return launch_cuts<kind, 16, kHeads>(stream, a, rest...);
  launch_cuts<kind, 32, kHeads>(stream, a, rest...);
}

// Heads that a thread block serves at a time. Only the cache that serves by default has all the choices.
int heads_at_once(KvKind kind, int group) { return kind != KvKind::f16 ? 4 : group == 1 ? 1 : group <= 4 ? 4 : 8; }

}  // namespace

int64_t attention_parts(int h, int e) { return is_hopper() ? 0 : int64_t{h} * slot_floats(kDealt, e); }

bool attention_appends(KvKind kind, int h, int hk) { return h / hk <= heads_at_once(kind, h / hk); }

bool attention_prepares(KvKind kind, int h, int hk, int e) {
  const int group = h / hk, heads = std::min(group, heads_at_once(kind, group));
  return group % heads == 0 && heads * e % kBlockColumns == 0;
}

void attend(Stream stream, const AttentionArguments& a, const FreshHeads& fresh, const float* q,
            const AttentionScratch& scratch, float* out, uint8_t* blocks) {
  switch (a.kind) {
    case KvKind::f32:
      return launch_lanes<KvKind::f32, 4>(stream, a, fresh, q, scratch, out, blocks);
    case KvKind::bf16:
      return launch_lanes<KvKind::bf16, 4>(stream, a, fresh, q, scratch, out, blocks);
    case KvKind::i8:
      return launch_lanes<KvKind::i8, 4>(stream, a, fresh, q, scratch, out, blocks);
    case KvKind::f16:
      break;
  }
  switch (heads_at_once(a.kind, a.h / a.hk)) {
    case 1:
      return launch_lanes<KvKind::f16, 1>(stream, a, fresh, q, scratch, out, blocks);
    case 4:
      return launch_lanes<KvKind::f16, 4>(stream, a, fresh, q, scratch, out, blocks);
    default:
      return launch_lanes<KvKind::f16, 8>(stream, a, fresh, q, scratch, out, blocks);
  }
}

}  // namespace fidelio::cuda
