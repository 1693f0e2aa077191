// This file launches attention over a cache of integers.
#include "kernels/cuda/attention/attention_launch.cuh"
#include "kernels/cuda/attention/attention_walk.cuh"

namespace fidelio::cuda {

void attend_integers(const AttentionCall& call) {
  call.a.kind == KvKind::i8 ? attend_multiplying<KvKind::i8>(call) : attend_multiplying<KvKind::i4x2>(call);
}

}  // namespace fidelio::cuda
