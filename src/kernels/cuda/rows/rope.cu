// Rotary positions, and keys and values into the cache, for batches in which a sequence has several rows (attention.cu
// does it itself where each has one).
#include "kernels/cuda/attention/kv_cache.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kAppendWarps = 4;

__global__ void turns_of_rows(const int32_t* positions, const float* frequencies, int half, float scale,
                              float2* turns) {
  begin_kernel();
  const int position = positions[blockIdx.x];
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    // The angle can be 1e5 and more: brought into [-pi, pi] in double, so that it stays as exact as its FP32 factors.
    const double angle = static_cast<double>(position) * static_cast<double>(frequencies[i]);
    float s, c;
    sincosf(static_cast<float>(angle - 6.283185307179586477 * rint(angle * 0.15915494309189533577)), &s, &c);
    turns[int64_t{blockIdx.x} * half + i] = {c * scale, s * scale};
  }
}

// One warp a head: first the query heads of a row, then its kv heads.
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
