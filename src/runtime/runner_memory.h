// This file defines the memory that RunnerImpl<B>s of one shape share. Only runner_impl.h includes it.
#pragma once
#include "runtime/execution/executor.h"

namespace fidelio {

// Runners that share a memory must run one after the other.
template <Backend B>
struct RunnerMemory {
  B backend;
  ValueMemory<B> values{};
  typename B::KvCache cache{};
  typename B::States states{};
  uint64_t states_version = 0;  // counts how often the slots were allocated
  uint64_t versions = 0;        // the last number given to a set of weights; a backend finds recorded steps by them
  size_t collected = 0;         // how many choices of steps that follow from each other the host knows
};

}  // namespace fidelio
