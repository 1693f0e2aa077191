// RunnerMemory<B>: the memory that RunnerImpl<B>s of one shape share. Included by runner_impl.h alone.
#pragma once
#include "runtime/execution/executor.h"

namespace fidelio {

// Runners that share a memory work one after the other.
template <Backend B>
struct RunnerMemory {
  B backend;
  ValueMemory<B> values;
  typename B::KvCache cache;
  uint64_t versions = 0;  // the numbers given to sets of weights, by which a backend finds the steps it recorded
  size_t collected = 0;   // so many choices of steps that follow from each other are known to the host
};

}  // namespace fidelio
