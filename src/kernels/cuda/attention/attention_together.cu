// This file launches attention for several rows of a sequence at a time, over a cache of FP16.
#include "kernels/cuda/attention/attention_halves.cuh"
#include "kernels/cuda/attention/attention_launch.cuh"

namespace fidelio::cuda {
namespace {

// The rings have as many units as shared memory has room for beside the queries and what is joined. With fewer thread
// blocks, each of them has more to join.
template <int kWidest, int kTiles>
void attend_tiles(const AttentionCall& call) {
  constexpr int kMany = kWidest > 128 ? 2 : 5,
                kSome = kWidest > 128  ? 2
                        : kWidest > 64 ? 6 - kTiles
                                       : 5,
                kFew = kTiles == 1 && kWidest <= 128 ? 3 : kSome;
  using One = HalvesWalk<SpansOfOne, kWidest, kMany, kTiles, true>;
  attend_by<Walks<One, One, HalvesWalk<SpansOfSome, kWidest, kSome, kTiles, true>,
                  HalvesWalk<SpansOfSome, kWidest, kFew, kTiles, true>>>(call);
}
template <int kWidest>
void attend_as_wide(const AttentionCall& call) {
  const int queries = std::min(call.a.h / call.a.hk, 8) * call.a.units.rows;
  if constexpr (kWidest <= 128) {
    if (queries > 16) return attend_tiles<kWidest, 3>(call);
    if (queries > 8) return attend_tiles<kWidest, 2>(call);
  }
  attend_tiles<kWidest, 1>(call);
}

}  // namespace

void attend_together(const AttentionCall& call) {
  if (call.a.e <= 64) return attend_as_wide<64>(call);
  if (call.a.e <= 128) return attend_as_wide<128>(call);
  attend_as_wide<256>(call);
}

}  // namespace fidelio::cuda
