// This file rotates heads by position, and writes keys and values into the cache, for batches in which a sequence has
// several rows. (If each has one, attention.cu does it itself.)
#include "kernels/cuda/attention/kv_cache.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kAppendWarps = 4;

// Returns {cos, sin} times scale. The angle can be 1e5 and more. It is reduced to [-pi, pi] in double, so that it
// stays as exact as its FP32 factors.
__device__ __forceinline__ float2 turn_at(int position, float frequency, float scale) {
  const double angle = static_cast<double>(position) * static_cast<double>(frequency);
  float s, c;
  sincosf(static_cast<float>(angle - 6.283185307179586477 * rint(angle * 0.15915494309189533577)), &s, &c);
  return {c * scale, s * scale};
}

__global__ void turns_of_rows(const int32_t* positions, const float* frequencies, int half, float scale,
                              float2* turns) {
  begin_kernel();
  const int position = positions[blockIdx.x];
  for (int i = threadIdx.x; i < half; i += blockDim.x)
    turns[int64_t{blockIdx.x} * half + i] = turn_at(position, frequencies[i], scale);
}

constexpr int kPrepareThreads = 64;

// Returns what a head of e columns, which the threads of a block share, is multiplied by before its norm's weight.
__device__ __forceinline__ float factor_of_head(const float* at, float factor, int e, float eps) {
  __shared__ float of_warps[kPrepareThreads / 32];
  float squares = 0;
  for (int i = threadIdx.x; i < e; i += blockDim.x) squares = fmaf(at[i] * factor, at[i] * factor, squares);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) squares += __shfl_xor_sync(~0u, squares, apart);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = squares;
  __syncthreads();
  return rsqrtf((of_warps[0] + of_warps[1]) / static_cast<float>(e) + eps);
}

// Thread block (row, head) has a query head, or one of the kv heads behind them. A thread has a pair, or a column of
// the rest, which is not rotated.
__global__ void __launch_bounds__(kPrepareThreads)
    heads_of_rows(const int32_t* positions, HeadPreparation how, int h, int hk, int e, float* q, float* k) {
  begin_kernel();
  const int row = blockIdx.x, head = blockIdx.y, position = positions[row];
  const bool query = head < h;
  float* at = query ? q + (int64_t{row} * h + head) * e : k + (int64_t{row} * hk + head - h) * e;
  const float factor =
      query ? how.query_scale * fmaf(how.growth, log1pf(static_cast<float>(position / how.growth_positions)), 1.0f) : 1;
  const float* norm = query ? how.q_norm : how.k_norm;
  const float normed = norm ? factor_of_head(at, factor, e, how.eps) : 1;
  const auto prepared = [&](int i) { return norm ? at[i] * factor * normed * norm[i] : at[i] * factor; };
  for (int i = threadIdx.x; i < e - how.pairs; i += blockDim.x) {
    if (i >= how.pairs) {
      at[i + how.pairs] = prepared(i + how.pairs);
      continue;
    }
    const float2 t = turn_at(position, how.frequencies[i], how.scale);
    const float x = prepared(i), y = prepared(i + how.pairs);
    at[i] = fmaf(x, t.x, -__fmul_rn(y, t.y));
    at[i + how.pairs] = fmaf(y, t.x, __fmul_rn(x, t.y));
  }
}

// Each warp has one head: first the query heads of a row, then its kv heads.
template <KvKind kind>
__global__ void __launch_bounds__(kAppendWarps * 32) append(AttentionArguments a, FreshHeads fresh) {
  extern __shared__ __align__(16) float turned[];  // a head for each warp
  begin_kernel();
  const int row = blockIdx.x, warp = threadIdx.x / 32, head = blockIdx.y * kAppendWarps + warp,
            position = a.positions[row];
  const float2* turns = reinterpret_cast<const float2*>(fresh.turns) + int64_t{row} * (a.e / 2);
  if (head < a.h) {
    float* at = fresh.q + (int64_t{row} * a.h + head) * a.e;
    turn(at, fresh.q_norm, fresh.eps, turns, a.e,
         [&](int column, float2 pair) { *reinterpret_cast<float2*>(at + column) = pair; });
  } else if (head < a.h + a.hk) {
    float* mine = turned + warp * a.e;
    const int kv_head = head - a.h;
    const int64_t slot = slot_of(a, a.sequence[row], position, kv_head), from = (int64_t{row} * a.hk + kv_head) * a.e;
    turn(fresh.k + from, fresh.k_norm, fresh.eps, turns, a.e,
         [&](int column, float2 pair) { *reinterpret_cast<float2*>(mine + column) = pair; });
    __syncwarp();
    const int column = threadIdx.x % 32 * 8;
    float key[8], value[8];
    eight_of(mine, column, a.e, key);
    eight_of(fresh.v + from, column, a.e, value);
    Stored8<kind> stored;
    stored.template take<32>(key, column < a.e);
    if (column < a.e) stored.save(a.keys, a.key_scales, slot, a.e, column);
    stored.template take<32>(value, column < a.e);
    if (column < a.e) stored.save(a.values, a.value_scales, slot, a.e, column);
  }
}

}  // namespace

void rope_turns(Stream stream, const int32_t* positions, int64_t n, const float* inverse_frequencies, int64_t e,
                float rope_scale, float* turns) {
  launch("angles", stream, dim3(static_cast<unsigned>(n)), 64, 0, turns_of_rows, positions, inverse_frequencies,
         static_cast<int>(e / 2), rope_scale, reinterpret_cast<float2*>(turns));
}

void prepare_heads(Stream stream, const int32_t* positions, int64_t n, const HeadPreparation& how, int h, int hk, int e,
                   float* q, float* k) {
  launch("preparing heads", stream, dim3(static_cast<unsigned>(n), static_cast<unsigned>(h + hk)), kPrepareThreads, 0,
         heads_of_rows, positions, how, h, hk, e, q, k);
}

void rope_append(Stream stream, const AttentionArguments& a, const FreshHeads& fresh) {
  const auto with = [&](auto kernel) {
    launch("turning queries and keys", stream, dim3(a.n, (a.h + a.hk + kAppendWarps - 1) / kAppendWarps),
           kAppendWarps * 32, kAppendWarps * static_cast<size_t>(a.e) * sizeof(float), kernel, a, fresh);
  };
  switch (a.kind) {
    case KvKind::f32:
      return with(append<KvKind::f32>);
    case KvKind::f16:
      return with(append<KvKind::f16>);
    case KvKind::bf16:
      return with(append<KvKind::bf16>);
    case KvKind::i8:
      return with(append<KvKind::i8>);
    case KvKind::i4x2:
      return with(append<KvKind::i4x2>);
  }
}

}  // namespace fidelio::cuda
