// Rotary positions, the paged cache, and attention over it.
//
// The context of a row is cut at multiples of kSplit = 128 positions (four pages), wherever the row stands in its
// batch:
//
//      positions  0 ......... 127 | 128 ....... 255 | 256 ... p          one thread block each, for all query heads
//      that share partial     (m, l, o)       (m, l, o)         (m, l, o)            a kv head; joined in order by a
//      second kernel
//
// Within a cut a thread is a position for q k, a warp a query head for the softmax, and a thread eight columns for p v.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/prepare.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kPage = 32;  // tokens: kPageTokens of backend.h
constexpr int kAppendWarps = 4;
constexpr int kThreads = kSplit;

__device__ int64_t slot_of(const AttentionArguments& a, int sequence, int position, int kv_head) {
  const int page = a.page_of[int64_t{sequence} * a.pages_per_sequence + position / kPage];
  return (int64_t{page} * a.hk + kv_head) * kPage + position % kPage;
}

template <KvKind kind>
__device__ float cached(const void* base, const float* scales, int64_t slot, int e, int i) {
  const int64_t at = slot * e + i;
  if constexpr (kind == KvKind::f32) return static_cast<const float*>(base)[at];
  if constexpr (kind == KvKind::f16) return __half2float(static_cast<const __half*>(base)[at]);
  if constexpr (kind == KvKind::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[at]);
  return static_cast<float>(static_cast<const uint8_t*>(base)[at]) * scales[slot * 2] + scales[slot * 2 + 1];
}

// Eight consecutive values, e a multiple of 8.
template <KvKind kind>
__device__ void cached8(const void* base, const float* scales, int64_t slot, int e, int i, float (&to)[8]) {
  if constexpr (kind == KvKind::f16 || kind == KvKind::bf16) {
    const uint4 raw = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(base) + slot * e + i);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 pair;
      if constexpr (kind == KvKind::f16)
        pair = __half22float2(*reinterpret_cast<const __half2*>(&words[j]));
      else
        pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&words[j]));
      to[2 * j] = pair.x;
      to[2 * j + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j] = cached<kind>(base, scales, slot, e, i + j);
  }
}

// One warp stores a vector of e values.
template <KvKind kind>
__device__ void store(void* base, float* scales, int64_t slot, int e, const float* values) {
  const int lane = threadIdx.x % 32;
  if constexpr (kind == KvKind::i8) {
    float low = values[lane % e], high = low;
    for (int i = lane; i < e; i += 32) low = fminf(low, values[i]), high = fmaxf(high, values[i]);
    for (int d = 16; d > 0; d /= 2)
      low = fminf(low, __shfl_xor_sync(~0u, low, d)), high = fmaxf(high, __shfl_xor_sync(~0u, high, d));
    const float scale = (high - low) / 255, inverse = scale > 0 ? 1 / scale : 0;
    for (int i = lane; i < e; i += 32)
      static_cast<uint8_t*>(base)[slot * e + i] =
          static_cast<uint8_t>(fminf(fmaxf(rintf((values[i] - low) * inverse), 0.0f), 255.0f));
    if (lane == 0) scales[slot * 2] = scale, scales[slot * 2 + 1] = low;
    return;
  }
  for (int i = lane; i < e; i += 32) {
    const int64_t at = slot * e + i;
    if constexpr (kind == KvKind::f32) static_cast<float*>(base)[at] = values[i];
    if constexpr (kind == KvKind::f16) static_cast<__half*>(base)[at] = __float2half_rn(values[i]);
    if constexpr (kind == KvKind::bf16) static_cast<__nv_bfloat16*>(base)[at] = __float2bfloat16_rn(values[i]);
  }
}

// A warp normalises (weight or null) and turns one head, from -> to (which may be from).
__device__ void turn(const float* from, const float* weight, float eps, const float* frequencies, float rope_scale,
                     int position, int e, float* to) {
  const int lane = threadIdx.x % 32;
  float scale = 1;
  if (weight) {
    float squares = 0;
    for (int i = lane; i < e; i += 32) squares += from[i] * from[i];
    for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
    scale = 1 / sqrtf(squares / static_cast<float>(e) + eps);
  }
  for (int i = lane; i < e / 2; i += 32) {
    const float a = from[i] * scale * (weight ? weight[i] : 1.0f),
                b = from[i + e / 2] * scale * (weight ? weight[i + e / 2] : 1.0f);
    // The angle can be 1e5 and more: brought into [-pi, pi] in double, so that it stays as exact as its FP32 factors.
    const double angle = static_cast<double>(position) * static_cast<double>(frequencies[i]);
    float s, c;
    sincosf(static_cast<float>(angle - 6.283185307179586477 * rint(angle * 0.15915494309189533577)), &s, &c);
    s *= rope_scale;
    c *= rope_scale;
    to[i] = a * c - b * s;
    to[i + e / 2] = b * c + a * s;
  }
}

// One warp a head: first the query heads of a row, then its kv heads.
template <KvKind kind>
__global__ void __launch_bounds__(kAppendWarps * 32)
    append(AttentionArguments a, float* q, const float* k, const float* v, const float* q_norm, const float* k_norm,
           float eps, const float* frequencies, float rope_scale) {
  extern __shared__ float turned[];  // a head for each warp
  begin_kernel();
  const int row = blockIdx.x, warp = threadIdx.x / 32, head = blockIdx.y * kAppendWarps + warp,
            position = a.positions[row];
  if (head < a.h) {
    float* at = q + (int64_t{row} * a.h + head) * a.e;
    turn(at, q_norm, eps, frequencies, rope_scale, position, a.e, at);
  } else if (head < a.h + a.hk) {
    float* mine = turned + warp * a.e;
    const int kv_head = head - a.h;
    const int64_t slot = slot_of(a, a.sequence[row], position, kv_head), from = (int64_t{row} * a.hk + kv_head) * a.e;
    turn(k + from, k_norm, eps, frequencies, rope_scale, position, a.e, mine);
    __syncwarp();
    store<kind>(a.keys, a.key_scales, slot, a.e, mine);
    store<kind>(a.values, a.value_scales, slot, a.e, v + from);
  }
}

// kHeads: query heads of a kv head at a time.
template <KvKind kind, int kHeads>
__global__ void __launch_bounds__(kThreads)
    attend_cut(AttentionArguments a, int row0, const float* q, float* scratch, int cuts) {
  extern __shared__ __align__(16) float shared[];  // q of up to kHeads heads, then their scores
  begin_kernel();
  const int row = row0 + blockIdx.x, kv_head = blockIdx.y, cut = blockIdx.z, group = a.h / a.hk, tid = threadIdx.x;
  const int last = a.positions[row], begin = cut * kSplit, first = a.window > 0 ? max(0, last - a.window + 1) : 0;
  const bool empty = begin > last || begin + kSplit <= first;
  const int position = begin + tid;
  const bool seen = !empty && position <= last && position >= first;
  const int64_t slot = seen ? slot_of(a, a.sequence[row], position, kv_head) : 0;
  __shared__ int64_t slots[kSplit];
  slots[tid] = slot;
  float* queries = shared;
  float* scores = shared + kHeads * a.e;
  float* joined = scores + kHeads * kSplit;  // (lanes, heads, e): at most kThreads * 8 a head
  const float scale = rsqrtf(static_cast<float>(a.e));

  for (int head0 = 0; head0 < group; head0 += kHeads) {
    const int heads = min(kHeads, group - head0);
    float* to = scratch + ((int64_t{blockIdx.x} * a.h + kv_head * group + head0) * cuts + cut) * (a.e + 2);
    const int64_t head_stride = int64_t{cuts} * (a.e + 2);
    if (empty) {
      if (tid < heads) to[tid * head_stride] = -INFINITY, to[tid * head_stride + 1] = 0;
      continue;
    }
    __syncthreads();
    for (int i = tid; i < kHeads * a.e; i += kThreads)
      queries[i] = i < heads * a.e ? q[(int64_t{row} * a.h + kv_head * group + head0) * a.e + i] * scale : 0.0f;
    __syncthreads();
    float dot[kHeads] = {};
    if (seen)
#pragma unroll 4
      for (int i = 0; i < a.e; i += 8) {
        float key[8];
        cached8<kind>(a.keys, a.key_scales, slot, a.e, i, key);
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
          const float4 low = *reinterpret_cast<const float4*>(queries + head * a.e + i),
                       high = *reinterpret_cast<const float4*>(queries + head * a.e + i + 4);
          const float query[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
          for (int j = 0; j < 8; ++j) dot[head] = fmaf(query[j], key[j], dot[head]);
        }
      }
#pragma unroll
    for (int head = 0; head < kHeads; ++head) scores[head * kSplit + tid] = seen ? dot[head] : -INFINITY;
    __syncthreads();
    for (int head = tid / 32; head < kHeads; head += kThreads / 32) {
      float largest = -INFINITY, sum = 0;
      for (int i = tid % 32; i < kSplit; i += 32) largest = fmaxf(largest, scores[head * kSplit + i]);
      for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
      for (int i = tid % 32; i < kSplit; i += 32)
        sum += scores[head * kSplit + i] = expf(scores[head * kSplit + i] - largest);
      for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
      if (tid % 32 == 0 && head < heads) to[head * head_stride] = largest, to[head * head_stride + 1] = sum;
    }
    __syncthreads();
    // Eight columns a thread, the positions dealt out to the kThreads * 8 / e lanes that share a column; their sums
    // meet in order.
    const int columns8 = a.e / 8, lanes = kThreads / columns8, column = tid % columns8 * 8, lane = tid / columns8;
    const int from = max(first - begin, 0), count = min(kSplit, last - begin + 1);
    float out[kHeads][8] = {};
    if (lane < lanes)
#pragma unroll 4
      for (int p = from + lane; p < count; p += lanes) {
        float value[8];
        cached8<kind>(a.values, a.value_scales, slots[p], a.e, column, value);
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
          const float weight = scores[head * kSplit + p];
#pragma unroll
          for (int j = 0; j < 8; ++j) out[head][j] = fmaf(weight, value[j], out[head][j]);
        }
      }
    if (lane < lanes)
#pragma unroll
      for (int head = 0; head < kHeads; ++head)
#pragma unroll
        for (int j = 0; j < 8; ++j) joined[(lane * kHeads + head) * a.e + column + j] = out[head][j];
    __syncthreads();
    for (int i = tid; i < heads * a.e; i += kThreads) {
      float sum = 0;
      for (int l = 0; l < lanes; ++l) sum += joined[l * kHeads * a.e + i];
      to[i / a.e * head_stride + 2 + i % a.e] = sum;
    }
  }
}

__global__ void join_cuts(const float* scratch, int row0, int h, int e, int cuts, float* out, float* maxima) {
  begin_kernel();
  const int64_t head = int64_t{blockIdx.x} * h + blockIdx.y;
  const float* from = scratch + head * cuts * (e + 2);
  float largest = -INFINITY;
  for (int cut = 0; cut < cuts; ++cut) largest = fmaxf(largest, from[cut * (e + 2)]);
  float amax = 0;
  for (int i = threadIdx.x; i < e; i += blockDim.x) {
    float sum = 0, weight = 0;
    for (int cut = 0; cut < cuts; ++cut) {
      const float* part = from + cut * (e + 2);
      if (part[1] == 0) continue;  // nothing of this cut is seen
      const float factor = expf(part[0] - largest);
      sum = fmaf(factor, part[2 + i], sum);
      weight = fmaf(factor, part[1], weight);
    }
    out[(int64_t{row0} * h + head) * e + i] = sum / weight;
    amax = fmaxf(amax, fabsf(sum / weight));
  }
  amax = over_block(amax, Larger());
  if (threadIdx.x == 0) maxima[int64_t{row0} * h + head] = amax;
}

template <KvKind kind, int kHeads>
void launch_attend(Stream stream, const AttentionArguments& a, const float* q, int cuts, float* scratch,
                   int64_t scratch_rows, float* out, float* maxima) {
  const size_t shared = static_cast<size_t>(kHeads * (a.e + kSplit + kThreads * 8)) * sizeof(float);
  static const cudaError_t allowed =
      cudaFuncSetAttribute(attend_cut<kind, kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize, 96 * 1024);
  cuda_check(allowed, "allowing attention its shared memory");
  for (int row0 = 0; row0 < a.n; row0 += static_cast<int>(scratch_rows)) {
    const int rows = a.n - row0 < scratch_rows ? a.n - row0 : static_cast<int>(scratch_rows);
    launch("attention", stream, dim3(rows, a.hk, cuts), kThreads, shared, attend_cut<kind, kHeads>, a, row0, q, scratch,
           cuts);
    launch("attention", stream, dim3(rows, a.h), 128, 0, join_cuts, scratch, row0, a.h, a.e, cuts, out, maxima);
  }
}

template <KvKind kind, typename... Rest>
void launch_heads(Stream stream, const AttentionArguments& a, Rest... rest) {
  const int group = a.h / a.hk;
  if (group == 1) return launch_attend<kind, 1>(stream, a, rest...);
  if (group == 2) return launch_attend<kind, 2>(stream, a, rest...);
  if (group <= 4) return launch_attend<kind, 4>(stream, a, rest...);
  launch_attend<kind, 8>(stream, a, rest...);
}

}  // namespace

void rope_append(Stream stream, const AttentionArguments& a, float* q, const float* k, const float* v,
                 const float* q_norm, const float* k_norm, float eps, const float* inverse_frequencies,
                 float rope_scale) {
  const auto with = [&](auto kernel) {
    launch("turning queries and keys", stream, dim3(a.n, (a.h + a.hk + kAppendWarps - 1) / kAppendWarps),
           kAppendWarps * 32, kAppendWarps * static_cast<size_t>(a.e) * sizeof(float), kernel, a, q, k, v, q_norm,
           k_norm, eps, inverse_frequencies, rope_scale);
  };
  switch (a.kind) {
    case KvKind::f32:
      with(append<KvKind::f32>);
      break;
    case KvKind::f16:
      with(append<KvKind::f16>);
      break;
    case KvKind::bf16:
      with(append<KvKind::bf16>);
      break;
    case KvKind::i8:
      with(append<KvKind::i8>);
      break;
  }
}

void attend(Stream stream, const AttentionArguments& a, const float* q, int64_t longest, float* scratch,
            int64_t scratch_rows, float* out, float* maxima) {
  const int cuts = static_cast<int>((longest + kSplit - 1) / kSplit);
  switch (a.kind) {
    case KvKind::f32:
      launch_heads<KvKind::f32>(stream, a, q, cuts, scratch, scratch_rows, out, maxima);
      break;
    case KvKind::f16:
      launch_heads<KvKind::f16>(stream, a, q, cuts, scratch, scratch_rows, out, maxima);
      break;
    case KvKind::bf16:
      launch_heads<KvKind::bf16>(stream, a, q, cuts, scratch, scratch_rows, out, maxima);
      break;
    case KvKind::i8:
      launch_heads<KvKind::i8>(stream, a, q, cuts, scratch, scratch_rows, out, maxima);
      break;
  }
}

}  // namespace fidelio::cuda
