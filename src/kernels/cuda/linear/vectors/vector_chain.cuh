// What a launch of products of vector codes is told, and what of it a thread block does next.
#pragma once
#include "kernels/cuda/linear/vectors/vectors.h"

namespace fidelio::cuda {

constexpr int kBooks = 2;

struct VectorArguments {
  VectorWeight weight[kMaxTogether];
  float* y[kMaxTogether];
  int count;
  // Thread blocks of a weight, from first_block on; so many units each, the first ones one more.
  int first_block[kMaxTogether + 1], units_each[kMaxTogether], one_more[kMaxTogether];
  VectorInput input;
  int books;    // in shared memory at a time
  int at_once;  // units whose sums have room
  int fixes;    // corrections that have
  bool keeps;   // the row is in shared memory as well
  bool add;
};

constexpr int row_bytes(int groups) { return groups * kVectorGroup * 8 * 4; }
constexpr int odd(int spans) { return spans | 1; }           // rows' sums so far apart meet no bank twice
constexpr int fix_bytes(int rows) { return 12 + 4 * rows; }  // of a correction
constexpr int kStageBytes = 64;  // of shared memory, before all else: the next stage, and kBooksArrived
constexpr int unit_bytes(int rows, int spans) { return kVectorUnit * (rows * odd(spans) + 1) * 4; }

// Products of a launch, one after the other: thread blocks go on to the next one when all are done with the one before.
struct VectorChain {
  VectorArguments product[kMostChained];
  int count;
  uint32_t* arrived;  // a GridBarrier's, where there are several
};

// What a thread block does of a chain, a stage after the other: `count` units of one weight, from `unit` on, that have
// the codebooks of `block` and the next one.
struct VectorStages {
  int product = -1;    // chain.count behind the last stage
  bool first = false;  // of the product
  int which = 0;       // of its weights
  int unit = 0, count = 0, block = 0;
  int end = 0;     // of the thread block's units
  int parity = 1;  // of how many stages there were before

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
