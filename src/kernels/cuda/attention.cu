// Attention over the paged cache.
//
// The context of a row is cut at multiples of kCut = 128 positions, wherever the row stands in its batch. A cut is a
// thread block's, for all query heads that share a kv head; half a page of it (kSpan = 16 positions) is a warp's, which
// needs nobody else until its part is done:
//
//      cut    0 ................. 127 | 128 .............. 255 | 256 ... p
//      span   [w0][w1][w2] ...   [w7] | [w0] ...               | [w0]
//      warp   the span's keys and values to registers at once; dots over kLanes lanes a position, eight columns a lane;
//             softmax with a lane a position; p v, eight columns a lane
//      block  (m, l, o) of its spans joined in shared memory in order
//      row    the last thread block to arrive joins the cuts in order and leaves the result prepared for the next
//      product
//
// So one row at a context of 4096 is spread over 33 x hk thread blocks, and the order of all sums depends on the row's
// position alone. Where each sequence of the batch has one row, the same kernel also turns its queries and its key, and
// appends key and value: `fresh`.
#include <algorithm>

#include "kernels/cuda/kv_cache.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prepare.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kSpan = 16, kWarps = kCut / kSpan, kThreads = kWarps * 32;

// Each of N values summed over kLanes neighbouring lanes by a tree. Afterwards a lane holds the sums of the max(1, N /
// kLanes) values from the returned index on, in the front of `v`.
template <int N, int kLanes>
__device__ __forceinline__ int reduce_scatter(float (&v)[N]) {
  int held = N, from = 0;
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) {
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

// Which heads, row and cuts a thread block works for.
struct Part {
  int row, kv_head, head0, heads, first, last, first_cut, cuts, cut;
};

// Shared memory, in floats.
template <int kHeads>
struct Layout {
  int e;
  __host__ __device__ int queries() const { return 0; }
  __host__ __device__ int key() const { return kHeads * e; }
  __host__ __device__ int scores() const { return key() + e; }                          // [warp][position][head]
  __host__ __device__ int peaks() const { return scores() + kWarps * kSpan * kHeads; }  // [warp][head] {m, l}
  __host__ __device__ int sums() const { return peaks() + kWarps * kHeads * 2; }        // [warp][head][e]
  __host__ __device__ int bytes() const { return (sums() + kWarps * kHeads * e) * 4; }
};

// A warp's span: softmax numerators and sums into shared memory.
template <KvKind kind, int kLanes, int kHeads>
struct Span {
  static constexpr int kAtOnce = 32 / kLanes, kSteps = kSpan / kAtOnce;  // positions a step
  static constexpr bool kHeld = sizeof(Stored8<kind>) * kSteps <= 128;   // keys and values of the span fit in registers
  static constexpr int kBatch = std::min(kSteps, kLanes >= kHeads ? kLanes / kHeads : 1);
  const AttentionArguments& a;
  const Part& part;
  int begin;      // position
  int64_t slot0;  // of that position
  Stored8<kind> keys[kHeld ? kSteps : 1], values[kHeld ? kSteps : 1];

  __device__ int column() const { return threadIdx.x % kLanes * 8; }
  __device__ int in_span(int step) const { return step * kAtOnce + threadIdx.x % 32 / kLanes; }
  __device__ bool seen(int in_span, int last) const { return begin + in_span <= last && begin + in_span >= part.first; }
  __device__ Stored8<kind> loaded(bool key, int step, int last) const {
    Stored8<kind> s;
    s.clear();
    if (seen(in_span(step), last) && column() < a.e)
      s.load(key ? a.keys : a.values, key ? a.key_scales : a.value_scales, slot0 + in_span(step), a.e, column());
    return s;
  }
  // Asks for all positions up to `last`.
  __device__ void load(int last) {
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) keys[step] = loaded(true, step, last);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) values[step] = loaded(false, step, last);
    }
  }
  // Position `last` alone, appended by this warp since.
  __device__ void load_appended(int last) {
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        if (begin + in_span(step) == last) {
          keys[step] = loaded(true, step, last);
          values[step] = loaded(false, step, last);
        }
    }
  }

  __device__ void attend(const float* queries, float* scores, float* peaks, float* sums) {
    const float scale = rsqrtf(static_cast<float>(a.e));
    const int lane = threadIdx.x % 32;
    float query[kHeads][8];
#pragma unroll
    for (int head = 0; head < kHeads; ++head)
#pragma unroll
      for (int j = 0; j < 8; ++j)
        query[head][j] = head < part.heads && column() < a.e ? queries[head * a.e + column() + j] * scale : 0.0f;
#pragma unroll
    for (int step0 = 0; step0 < kSteps; step0 += kBatch) {
      float dots[kBatch * kHeads] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float key[8];
        (kHeld ? keys[kHeld ? step0 + i : 0] : loaded(true, step0 + i, part.last)).values(key);
#pragma unroll
        for (int head = 0; head < kHeads; ++head)
#pragma unroll
          for (int j = 0; j < 8; ++j) dots[i * kHeads + head] = fmaf(query[head][j], key[j], dots[i * kHeads + head]);
      }
      const int from = reduce_scatter<kBatch * kHeads, kLanes>(dots);
      constexpr int kMine = kBatch * kHeads > kLanes ? kBatch * kHeads / kLanes : 1;
#pragma unroll
      for (int i = 0; i < kMine; ++i)
        scores[in_span(step0 + (from + i) / kHeads) * kHeads + (from + i) % kHeads] = dots[i];
    }
    __syncwarp();
    // A lane a position, half of the warp every second head.
    const int position = lane % kSpan;
#pragma unroll
    for (int i = 0; i < (kHeads + 1) / 2; ++i) {
      const int head = kHeads == 1 ? 0 : 2 * i + lane / kSpan;
      const float score = seen(position, part.last) ? scores[position * kHeads + head] : -INFINITY;
      float largest = score;
      for (int d = kSpan / 2; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
      const float weight = expf(score - largest);
      float sum = weight;
      for (int d = kSpan / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
      scores[position * kHeads + head] = weight;
      if (position == 0) peaks[head * 2] = largest, peaks[head * 2 + 1] = sum;
    }
    __syncwarp();
    float out[kHeads][8] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float value[8];
      (kHeld ? values[kHeld ? step : 0] : loaded(false, step, part.last)).values(value);
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        const float weight = scores[in_span(step) * kHeads + head];
#pragma unroll
        for (int j = 0; j < 8; ++j) out[head][j] = fmaf(weight, value[j], out[head][j]);
      }
    }
#pragma unroll
    for (int head = 0; head < kHeads; ++head)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int d = kLanes; d < 32; d *= 2) out[head][j] += __shfl_xor_sync(~0u, out[head][j], d);
        if (lane < kLanes && column() < a.e) sums[head * a.e + column() + j] = out[head][j];
      }
  }
};

// The thread block's last act for a row: `finished` (heads, e) to memory, and prepared if it is whole blocks.
__device__ void finish(const AttentionArguments& a, const Part& part, const float* finished, float* out,
                       uint8_t* blocks) {
  for (int i = threadIdx.x; i < part.heads * a.e; i += kThreads)
    out[(int64_t{part.row} * a.h + part.head0) * a.e + i] = finished[i];
  if (!blocks) return;
  for (int block = threadIdx.x / 32; block < part.heads * a.e / kBlockColumns; block += kWarps)
    prepare_block(reinterpret_cast<const float4*>(finished + block * kBlockColumns)[threadIdx.x % 32], part.row, a.n,
                  part.head0 * a.e / kBlockColumns + block, (a.h * a.e + kBlockColumns - 1) / kBlockColumns, blocks);
}

// Joins the cuts of a row, all of which are in `scratch` [head][cut]{m, l, o}, into `finished`: a thread a column,
// kAtOnce cuts at a time on top of those before.
__device__ void join_cuts(const AttentionArguments& a, const Part& part, const float* scratch, int stride,
                          float* finished) {
  constexpr int kAtOnce = 8;
  const int step = a.e + 2;
  for (int i = threadIdx.x; i < part.heads * a.e; i += kThreads) {
    const float* from = scratch + (int64_t{i / a.e} * stride + part.first_cut) * step;
    float peak = -INFINITY, weight = 0, sum = 0;
    for (int cut0 = 0; cut0 < part.cuts; cut0 += kAtOnce) {
      float m[kAtOnce], l[kAtOnce], o[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const bool there = cut0 + j < part.cuts;
        const float* at = from + (there ? cut0 + j : 0) * step;
        m[j] = there ? __ldcg(at) : -INFINITY;
        l[j] = __ldcg(at + 1);
        o[j] = __ldcg(at + 2 + i % a.e);
      }
      float largest = peak;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) largest = fmaxf(largest, m[j]);
      const float before = expf(peak - largest);
      sum *= before;
      weight *= before;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const float factor = expf(m[j] - largest);
        sum = fmaf(factor, o[j], sum);
        weight = fmaf(factor, l[j], weight);
      }
      peak = largest;
    }
    finished[i] = sum / weight;
  }
}

template <KvKind kind, int kLanes, int kHeads>
__global__ void __launch_bounds__(kThreads, kind == KvKind::f16 && kLanes * kHeads <= 64 ? 2 : 1)
    attend_cut(AttentionArguments a, FreshHeads fresh, const float* q, int row0, float* scratch, uint32_t* arrived,
               float* out, uint8_t* blocks) {
  extern __shared__ __align__(16) float shared[];
  ptx::allow_dependents();
  const int warp = threadIdx.x / 32, group = a.h / a.hk, passes = (group + kHeads - 1) / kHeads;
  Part part;
  part.row = row0 + blockIdx.x;
  part.kv_head = blockIdx.y / passes;
  part.head0 = part.kv_head * group + blockIdx.y % passes * kHeads;
  part.heads = min(kHeads, (part.kv_head + 1) * group - part.head0);
  part.last = a.positions[part.row];
  part.first = a.window > 0 ? max(0, part.last - a.window + 1) : 0;
  part.first_cut = part.first / kCut;
  part.cuts = part.last / kCut - part.first_cut + 1;
  part.cut = blockIdx.z;
  if (part.cut < part.first_cut || part.cut >= part.first_cut + part.cuts) return;

  const Layout<kHeads> layout{a.e};
  float *queries = shared + layout.queries(), *scores = shared + layout.scores() + warp * kSpan * kHeads,
        *peaks = shared + layout.peaks(), *sums = shared + layout.sums();
  const int begin = part.cut * kCut + warp * kSpan;
  const bool mine = begin <= part.last && begin + kSpan > part.first;
  const bool appends = fresh.k && begin <= part.last && part.last < begin + kSpan;
  Span<kind, kLanes, kHeads> span{a, part, begin, mine ? slot_of(a, a.sequence[part.row], begin, part.kv_head) : 0};
  // What earlier steps appended may be read at once; what this step did only when the kernel before is done.
  if (!fresh.k) ptx::dependency_wait();
  if (mine) span.load(fresh.k ? part.last - 1 : part.last);
  if (fresh.k) ptx::dependency_wait();

  const float* from = q + (int64_t{part.row} * a.h + part.head0) * a.e;
  if (fresh.k) {
    const float2* turns = reinterpret_cast<const float2*>(fresh.turns) + int64_t{part.row} * (a.e / 2);
    if (appends) {
      float* key = shared + layout.key();
      const int64_t slot = span.slot0 + part.last - begin, at = (int64_t{part.row} * a.hk + part.kv_head) * a.e;
      turn(fresh.k + at, fresh.k_norm, fresh.eps, turns, a.e, key);
      __syncwarp();
      store<kind>(a.keys, a.key_scales, slot, a.e, key);
      store<kind>(a.values, a.value_scales, slot, a.e, fresh.v + at);
      __syncwarp();
      span.load_appended(part.last);
    }
    for (int head = warp; head < part.heads; head += kWarps)
      turn(from + head * a.e, fresh.q_norm, fresh.eps, turns, a.e, queries + head * a.e);
  } else {
    for (int i = threadIdx.x; i < part.heads * a.e; i += kThreads) queries[i] = from[i];
  }
  __syncthreads();
  if (mine)
    span.attend(queries, scores, peaks + warp * kHeads * 2, sums + warp * kHeads * a.e);
  else if (threadIdx.x % 32 < kHeads)
    peaks[(warp * kHeads + threadIdx.x % 32) * 2] = -INFINITY, peaks[(warp * kHeads + threadIdx.x % 32) * 2 + 1] = 0;
  __syncthreads();

  // The spans of this cut; queries are done with, their place takes the result.
  float* mine_of_row = scratch + (int64_t{blockIdx.x} * a.h + part.head0) * gridDim.z * (a.e + 2);
  for (int i = threadIdx.x; i < part.heads * a.e; i += kThreads) {
    const int head = i / a.e;
    float largest = -INFINITY, sum = 0, weight = 0;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, peaks[(w * kHeads + head) * 2]);
    for (int w = 0; w < kWarps; ++w) {
      const float l = peaks[(w * kHeads + head) * 2 + 1];
      if (l == 0) continue;  // nothing of this span is seen
      const float factor = expf(peaks[(w * kHeads + head) * 2] - largest);
      sum = fmaf(factor, sums[w * kHeads * a.e + i], sum);
      weight = fmaf(factor, l, weight);
    }
    if (part.cuts == 1) {
      queries[i] = sum / weight;
      continue;
    }
    float* to = mine_of_row + (int64_t{head} * gridDim.z + part.cut) * (a.e + 2);
    to[2 + i % a.e] = sum;
    if (i % a.e == 0) to[0] = largest, to[1] = weight;
  }
  if (part.cuts > 1) {
    __shared__ bool last_to_arrive;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const auto before = static_cast<unsigned>(part.cuts - 1);
      last_to_arrive = atomicInc(arrived + blockIdx.x * gridDim.y + blockIdx.y, before) == before;  // and back to 0
    }
    __syncthreads();
    if (!last_to_arrive) return;
    __threadfence();
    join_cuts(a, part, mine_of_row, gridDim.z, queries);
  }
  __syncthreads();
  finish(a, part, queries, out, blocks);
}

template <KvKind kind, int kLanes, int kHeads>
void launch_cuts(Stream stream, const AttentionArguments& a, const FreshHeads& fresh, const float* q,
                 const AttentionScratch& scratch, float* out, uint8_t* blocks) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(attend_cut<kind, kLanes, kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize, 96 * 1024);
  cuda_check(allowed, "allowing attention its shared memory");
  const auto shared = static_cast<size_t>(Layout<kHeads>{a.e}.bytes());
  const int group = a.h / a.hk, passes = (group + kHeads - 1) / kHeads;
  for (int row0 = 0; row0 < a.n; row0 += static_cast<int>(scratch.rows)) {
    const int rows = static_cast<int>(std::min<int64_t>(a.n - row0, scratch.rows));
    launch("attention", stream, dim3(rows, a.hk * passes, scratch.cuts), kThreads, shared,
           attend_cut<kind, kLanes, kHeads>, a, fresh, q, row0, scratch.parts, scratch.arrived, out, blocks);
  }
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
