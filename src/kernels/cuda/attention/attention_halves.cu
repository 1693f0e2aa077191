// This file launches attention over a cache of FP16.
#include "kernels/cuda/attention/attention_halves.cuh"

#include "kernels/cuda/attention/attention_launch.cuh"
#include "kernels/cuda/attention/attention_walk.cuh"

namespace fidelio::cuda {
namespace {

// The rings have as many units as shared memory has room for, with one and with two thread blocks on a
// multiprocessor.
template <int kWidest>
void attend_as_wide(const AttentionCall& call) {
  using Small = HalvesWalk<SpansOfSome, kWidest, 2>;
  if (!is_hopper()) return attend_by<Walks<Small, Small, Small, Small>>(call);
  constexpr int kMany = kWidest > 128 ? 2 : 5, kFew = kWidest > 128 ? 2 : 3;
  attend_by<Walks<HalvesWalk<SpansOfOne, kWidest, kMany>, HalvesWalk<SpansOfOne, kWidest, 2>,
                  HalvesWalk<SpansOfSome, kWidest, kMany>, HalvesWalk<SpansOfSome, kWidest, kFew>>>(call);
}

}  // namespace

// Before Hopper there is no room for units of 256 columns.
bool has_halves(KvKind kind, int e) { return kind == KvKind::f16 && (e <= 128 || is_hopper()); }

void attend_halves(const AttentionCall& call) {
  const int e = call.a.e;
  if (!has_halves(call.a.kind, e)) return attend_multiplying<KvKind::f16, 32>(call);
  if (e <= 64) return attend_as_wide<64>(call);
  if (e <= 128) return attend_as_wide<128>(call);
  attend_as_wide<256>(call);
}

}  // namespace fidelio::cuda
