// This file defines the arguments of a launch of products of vector codes, and says which part of it a thread block
// does next.
#pragma once
#include "kernels/cuda/linear/vectors/vectors.h"

namespace fidelio::cuda {

constexpr int kBooks = 2;

struct VectorArguments {
  VectorWeight weight[kMaxTogether];
  float* y[kMaxTogether];
  int count;
  // The thread blocks of each weight: its first one, the units that each has, and how many of the first ones have one
  // unit more.
  int first_block[kMaxTogether + 1], units_each[kMaxTogether], one_more[kMaxTogether];
  VectorInput input;
  int books;    // codebooks in shared memory at a time
  int at_once;  // units whose sums there is room for
  int fixes;    // corrections that there is room for
  bool keeps;   // whether the row is in shared memory as well
  bool add;
};

constexpr int row_bytes(int groups) { return groups * kVectorGroup * 8 * 4; }
constexpr int odd(int spans) { return spans | 1; }           // rows' sums at an odd distance never use a bank twice
constexpr int fix_bytes(int rows) { return 12 + 4 * rows; }  // bytes of a correction
constexpr int kStageBytes = 64;  // shared memory at the very beginning: the next stage, and kBooksArrived
constexpr int unit_bytes(int rows, int spans) { return kVectorUnit * (rows * odd(spans) + 1) * 4; }

// A VectorChain is the products of a launch, one after the other. Thread blocks go on to the next product when all
// have finished the one before.
struct VectorChain {
  VectorArguments product[kMostChained];
  int count;
  uint32_t* arrived;  // the count of a GridBarrier, if there are several products
};

// VectorStages steps through what a thread block does of a chain. A stage is `count` units of one weight, from `unit`
// on, whose codebooks are `block` and the next one.
struct VectorStages {
  int product = -1;    // equal to chain.count behind the last stage
  bool first = false;  // whether this is the first stage of the product
  int which = 0;       // index of the weight within the product
  int unit = 0, count = 0, block = 0;
  int end = 0;     // the end of the thread block's units
  int parity = 1;  // parity of the number of earlier stages

  __device__ void advance(const VectorChain& chain) {
    unit += count, parity ^= 1;
    first = unit == end;
    while (unit == end) {
      count = 0;
      if (++product == chain.count) return;
      const VectorArguments& p = chain.product[product];
      const auto thread_block = static_cast<int>(blockIdx.x);
      if (thread_block >= p.first_block[p.count]) continue;
      for (which = 0; thread_block >= p.first_block[which + 1];) ++which;
      const int of = thread_block - p.first_block[which], more = p.one_more[which];
      unit = of * p.units_each[which] + min(of, more);
      end = unit + p.units_each[which] + (of < more ? 1 : 0);
    }
    const VectorArguments& p = chain.product[product];
    const VectorWeight& w = p.weight[which];
    block = w.block_of(unit);
    count = min(end, w.first_unit(block + p.books)) - unit;
  }
};
constexpr int kBooksArrived = kStageBytes - 8;  // a barrier in shared memory
static_assert(sizeof(VectorStages) <= kBooksArrived);

}  // namespace fidelio::cuda
