// RunnerMemory<B>: what RunnerImpl<B>s of one shape share. Included by runner_impl.h alone.
#pragma once
#include "runtime/forward/forward.h"

namespace fidelio {

// What runners of one shape share: they work one after the other.
template <Backend B>
struct RunnerMemory {
  B backend;
  Workspace<B> workspace;
  typename B::KvCache cache;
  uint64_t versions = 0;  // given to sets of weights, for what the backend may have recorded
  size_t collected = 0;   // of the choices of steps that follow from each other, so many are known to the host
};

}  // namespace fidelio
