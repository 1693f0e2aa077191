// One thread block a row. All sums are of integers and all orders are total, so threads may work in any order.
//
//   range     the best token, and whether all can be ordered; the greedy choice ends here
//   weigh     the sum of all weights, and how many tokens are near the best, for eight ideas of near
//   gather    as many of the nearest as there is room for into shared memory, sorted, their weights added up: each
//             filter and the choice are then a look-up
//   narrow    where the nearest do not settle a look-up (a flat row, a place far down): tokens dealt into bins, the one
//             bin that matters gathered; if it is too large, dealt again by the digits of their ranks
//
// This file is compiled without fused multiply-adds: choice_arithmetic.h has the same bits here and on the host.
#include "kernels/choice_arithmetic.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/rows/choose.h"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kRoom = 4096, kEach = kRoom / kThreads;  // tokens gathered
constexpr int kBins = 2048, kDigitBits = 11;
constexpr int kCuts = 8;
// Tokens fewer whole halvings than this below the best are near.
__device__ constexpr int kNearer[kCuts] = {2, 4, 6, 8, 10, 12, 16, 24};

struct Bins {
  uint32_t low[kBins], high[kBins], count[kBins];  // weights are high 2^32 + low
};
struct Shared {
  union {
    uint64_t ranks[kRoom];
    Bins bins;
  };
  uint64_t of_warp[kWarps], of_warp2[kWarps];
  uint64_t answer[4];
  uint32_t gathered, near[kCuts];
};

// ---- Over the thread block; every thread gets the result. All threads call them.

__device__ uint64_t sum_of_block(Shared& s, uint64_t value) {
  for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(~0u, value, d);
  if (threadIdx.x % 32 == 0) s.of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = s.of_warp[threadIdx.x % 32];
  for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(~0u, value, d);
  __syncthreads();
  return value;
}
__device__ uint64_t most_of_block(Shared& s, uint64_t value) {
  for (int d = 16; d > 0; d /= 2) value = max(value, __shfl_xor_sync(~0u, value, d));
  if (threadIdx.x % 32 == 0) s.of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = s.of_warp[threadIdx.x % 32];
  for (int d = 16; d > 0; d /= 2) value = max(value, __shfl_xor_sync(~0u, value, d));
  __syncthreads();
  return value;
}
// The sum of the threads before.
__device__ uint64_t sum_before(uint64_t* of_warp, uint64_t value) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t sum = value;
  for (int d = 1; d < 32; d *= 2)
    if (const uint64_t other = __shfl_up_sync(~0u, sum, d); lane >= d) sum += other;
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  uint64_t before = of_warp[lane];
  for (int d = 1; d < 32; d *= 2)
    if (const uint64_t other = __shfl_up_sync(~0u, before, d); lane >= d) before += other;
  before = __shfl_sync(~0u, before, max(warp - 1, 0));
  __syncthreads();
  return (warp > 0 ? before : 0) + sum - value;
}

// ---- A row.

__device__ __forceinline__ float logit_of(uint64_t rank) {
  const uint32_t key = static_cast<uint32_t>(rank >> 32);
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

struct Row {
  const float* x;
  int v;
  float top, scale;

  // work(logit, id) for this thread's tokens.
  template <typename Work>
  __device__ __forceinline__ void for_tokens(const Work& work) const {
    if (v % 4 != 0) {
#pragma unroll 4
      for (int i = threadIdx.x; i < v; i += kThreads) work(x[i], i);
      return;
    }
    constexpr int kAtOnce = 4, kStep = kThreads * 4;
    for (int first = threadIdx.x * 4; first < v; first += kAtOnce * kStep) {
      float4 four[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if (first + j * kStep < v) four[j] = *reinterpret_cast<const float4*>(x + first + j * kStep);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int id = first + j * kStep;
        if (id >= v) break;
        work(four[j].x, id);
        work(four[j].y, id + 1);
        work(four[j].z, id + 2);
        work(four[j].w, id + 3);
      }
    }
  }
  __device__ __forceinline__ float distance(float logit) const { return choice::distance(top, logit, scale); }
};

struct Range {
  uint64_t best;  // a rank
  float lowest;
  bool orderable;
};
__device__ Range range_of(Shared& s, const Row& row) {
  uint64_t best = 0, worst = 0;
  bool bad = false;
  row.for_tokens([&](float x, int id) {
    const uint64_t rank = choice::rank_of(x, id);
    best = max(best, rank);
    worst = max(worst, ~rank);
    bad = bad || !(x < __builtin_inff());
  });
  best = most_of_block(s, best);
  worst = ~most_of_block(s, worst);
  const bool orderable = !__syncthreads_or(bad) && logit_of(best) > -__builtin_inff();
  return {best, logit_of(worst), orderable};
}

// The sum of all weights; near[i] counts the tokens within kNearer[i].
__device__ uint64_t weigh(Shared& s, const Row& row) {
  if (threadIdx.x < kCuts) s.near[threadIdx.x] = 0;
  __syncthreads();
  uint64_t total = 0, counts[2] = {};  // four counts of 16 bits each
  row.for_tokens([&](float x, int) {
    const float t = row.distance(x);
    total += choice::weight_at(t);
    const int halvings = static_cast<int>(fminf(t, choice::kFarthest));
    if (halvings >= kNearer[kCuts - 1]) return;
    const int cut = halvings < 12 ? halvings / 2 : halvings < 16 ? 6 : 7;
    if (cut < 4)
      counts[0] += uint64_t{1} << (16 * cut);
    else
      counts[1] += uint64_t{1} << (16 * (cut - 4));
  });
#pragma unroll
  for (int i = 0; i < kCuts; ++i) {
    const uint32_t sum = __reduce_add_sync(~0u, static_cast<uint32_t>(counts[i / 4] >> (16 * (i % 4))) & 0xffff);
    if (threadIdx.x % 32 == 0 && sum > 0) atomicAdd(&s.near[i], sum);
  }
  return sum_of_block(s, total);  // whose barriers complete the counts
}

// Tokens in order, kEach of a thread, with the weight of all before; past the last one ranks are 0.
struct Sorted {
  uint64_t rank[kEach], weight[kEach], before;  // before the thread's first
  int count;
  uint64_t total;
};

// The tokens that pass, at most kRoom, after others of weight `before`. All threads.
template <typename Passes>
__device__ Sorted gather(Shared& s, const Row& row, uint64_t before, const Passes& passes) {
  __syncthreads();
  if (threadIdx.x == 0) s.gathered = 0;
  __syncthreads();
  row.for_tokens([&](float x, int id) {
    if (passes(x, id)) s.ranks[atomicAdd(&s.gathered, 1)] = choice::rank_of(x, id);
  });
  __syncthreads();
  const int count = static_cast<int>(s.gathered);
  int size = 32;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kThreads) s.ranks[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2)  // a bitonic sort, the best first
    for (int apart = run / 2; apart > 0; apart /= 2) {
      for (int i = threadIdx.x; i < size; i += kThreads) {
        const int other = i ^ apart;
        if (other < i) continue;
        const uint64_t a = s.ranks[i], b = s.ranks[other];
        if ((a < b) == ((i & run) == 0)) s.ranks[i] = b, s.ranks[other] = a;
      }
      __syncthreads();
    }
  Sorted sorted;
  uint64_t own = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = static_cast<int>(threadIdx.x) * kEach + j;
    sorted.rank[j] = i < count ? s.ranks[i] : 0;
    sorted.weight[j] = i < count ? choice::weight_at(row.distance(logit_of(sorted.rank[j]))) : 0;
    own += sorted.weight[j];
  }
  sorted.count = count;
  sorted.before = before + sum_before(s.of_warp, own);
  sorted.total = before + sum_of_block(s, own);
  return sorted;
}

// A prefix of the order: what it weighs, and its last token.
struct Prefix {
  uint64_t weight, last;
};
// How long: the shortest with at least so much weight, or with so many tokens.
struct Wanted {
  uint64_t amount;
  bool of_tokens;
};

// All threads; there must be such a prefix, which ends among these tokens. `tokens_before` are in front of them.
__device__ Prefix look_up(Shared& s, const Sorted& sorted, uint64_t tokens_before, Wanted wanted) {
  uint64_t weight = sorted.before, count = tokens_before + threadIdx.x * kEach;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const bool before = wanted.of_tokens ? count < wanted.amount : weight < wanted.amount;
    weight += sorted.weight[j];
    ++count;
    const bool reached = wanted.of_tokens ? count >= wanted.amount : weight >= wanted.amount;
    if (before && reached && sorted.rank[j] != 0) s.answer[0] = weight, s.answer[1] = sorted.rank[j];
  }
  __syncthreads();
  const Prefix prefix{s.answer[0], s.answer[1]};
  __syncthreads();
  return prefix;
}

// ---- Narrowing down where a prefix ends.

// Tokens of one bin of distances, whose ranks begin with these digits.
struct Part {
  int bin = 0, shift = 64;
  uint64_t digits = 0;
  uint64_t weight_before = 0, tokens_before = 0;
  uint32_t count = 0;
};
struct Binning {
  float per_halving;
  __device__ int bin_of(float t) const {
    const float place = fminf(t, choice::kFarthest) * per_halving;
    return static_cast<int>(fminf(place, static_cast<float>(kBins - 1)));
  }
};

// Bins of the tokens that pass, into shared memory.
template <typename Passes, typename BinOf>
__device__ void fill_bins(Shared& s, const Row& row, const Passes& passes, const BinOf& bin_of) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kThreads) s.bins.low[i] = s.bins.high[i] = s.bins.count[i] = 0;
  __syncthreads();
  row.for_tokens([&](float x, int id) {
    if (!passes(x, id)) return;
    const uint64_t weight = choice::weight_at(row.distance(x));
    const int bin = bin_of(x, id);
    const uint32_t low = static_cast<uint32_t>(weight), before = atomicAdd(&s.bins.low[bin], low);
    const uint32_t high = static_cast<uint32_t>(weight >> 32) + (before + low < low);
    if (high != 0) atomicAdd(&s.bins.high[bin], high);
    atomicAdd(&s.bins.count[bin], 1u);
  });
  __syncthreads();
}

// The bin in which the prefix ends, and what is before it, added to `part`.
__device__ int narrow(Shared& s, Wanted wanted, Part& part) {
  static_assert(kBins == 2 * kThreads);
  uint64_t weight[2], count[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int bin = static_cast<int>(threadIdx.x) * 2 + j;
    weight[j] = uint64_t{s.bins.high[bin]} << 32 | s.bins.low[bin];
    count[j] = s.bins.count[bin];
  }
  uint64_t weight_before = part.weight_before + sum_before(s.of_warp, weight[0] + weight[1]),
           tokens_before = part.tokens_before + sum_before(s.of_warp2, count[0] + count[1]);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint64_t from = wanted.of_tokens ? tokens_before : weight_before,
                   to = from + (wanted.of_tokens ? count[j] : weight[j]);
    if (from < wanted.amount && to >= wanted.amount) {
      s.answer[0] = weight_before, s.answer[1] = tokens_before;
      s.answer[2] = threadIdx.x * 2 + j, s.answer[3] = count[j];
    }
    weight_before += weight[j];
    tokens_before += count[j];
  }
  __syncthreads();
  part.weight_before = s.answer[0];
  part.tokens_before = s.answer[1];
  part.count = static_cast<uint32_t>(s.answer[3]);
  const int bin = static_cast<int>(s.answer[2]);
  __syncthreads();
  return bin;
}

// Among all tokens of the row, which have such a prefix.
__device__ Prefix look_up_in_all(Shared& s, const Row& row, float lowest, Wanted wanted) {
  constexpr float kLeast = 1e-6f;
  const Binning binning{static_cast<float>(kBins) / fmaxf(fminf(row.distance(lowest), choice::kFarthest), kLeast)};
  Part part;
  fill_bins(
      s, row, [](float, int) { return true; }, [&](float x, int) { return binning.bin_of(row.distance(x)); });
  part.bin = narrow(s, wanted, part);
  const auto passes = [&](float x, int id) {
    if (binning.bin_of(row.distance(x)) != part.bin) return false;
    return part.shift == 64 || choice::rank_of(x, id) >> part.shift == part.digits;
  };
  while (part.count > kRoom) {
    const int bits = min(kDigitBits, part.shift), shift = part.shift - bits;
    const auto digit_of = [&](float x, int id) {  // the largest first
      return static_cast<int>(~(choice::rank_of(x, id) >> shift) & ((1u << bits) - 1));
    };
    fill_bins(s, row, passes, digit_of);
    const int place = narrow(s, wanted, part);
    const uint64_t digit = ~static_cast<uint32_t>(place) & ((1u << bits) - 1);
    part.digits = (part.shift == 64 ? 0 : part.digits << bits) | digit;
    part.shift = shift;
  }
  return look_up(s, gather(s, row, part.weight_before, passes), part.tokens_before, wanted);
}

// ---- A choice.

// How near the tokens are that are gathered: so many that there is room for them, but, since sorting takes time, no more
// than settle all but one choice in a thousand. By what weigh() counted, so it has no part in what is chosen.
__device__ int cut_for(const Shared& s, int v, int64_t top_k) {
  constexpr float kRare = 1e-3f;  // of the best token's weight
  float beyond[kCuts];            // at most so much weight lies past a cut
  int64_t tokens = 0;
#pragma unroll
  for (int i = 0; i < kCuts; ++i) tokens += s.near[i];
  float weight = static_cast<float>(v - tokens) * ldexpf(1, -kNearer[kCuts - 1]);
#pragma unroll
  for (int i = kCuts - 1; i >= 0; --i) {
    beyond[i] = weight;
    weight += static_cast<float>(s.near[i]) * ldexpf(1, i > 0 ? -kNearer[i - 1] : 0);
  }
  int cut = 0;
  bool settled = false;
  tokens = 0;
#pragma unroll
  for (int i = 0; i < kCuts; ++i) {
    tokens += s.near[i];
    if (settled || tokens > kRoom) continue;
    cut = kNearer[i];
    settled = beyond[i] <= kRare && (top_k <= 0 || top_k > v || tokens >= top_k);
  }
  return cut;
}

// Filters and the place of the random number, among the nearest tokens where they settle it.
__device__ int32_t sample(Shared& s, const Row& row, float lowest, const DeviceRule& rule) {
  const uint64_t total = weigh(s, row);
  const int cut = cut_for(s, row.v, rule.top_k);
  const Sorted nearest = gather(
      s, row, 0, [&](float x, int) { return static_cast<int>(fminf(row.distance(x), choice::kFarthest)) < cut; });
  const auto find = [&](Wanted wanted) {
    const uint64_t there = wanted.of_tokens ? static_cast<uint64_t>(nearest.count) : nearest.total;
    return wanted.amount <= there ? look_up(s, nearest, 0, wanted) : look_up_in_all(s, row, lowest, wanted);
  };
  uint64_t kept = total;
  if (rule.top_k > 0 && rule.top_k < row.v) kept = find({static_cast<uint64_t>(rule.top_k), true}).weight;
  if (rule.top_p < 1) kept = find({choice::part_of(rule.top_p, kept), false}).weight;
  if (rule.farthest < __builtin_inff()) {
    uint64_t near_enough = 0;
    row.for_tokens([&](float x, int) {
      const float t = row.distance(x);
      if (t <= rule.farthest) near_enough += choice::weight_at(t);
    });
    kept = min(kept, sum_of_block(s, near_enough));
  }
  return choice::id_of(find({choice::place_of(rule.random, kept) + 1, false}).last);
}

__global__ void __launch_bounds__(kThreads)
    choose_rows(float* logits, int v, const DeviceRule* rules, const DeviceChange* changes, float* saved,
                DeviceChoice* choices) {
  __shared__ Shared s;
  __shared__ DeviceRule own_rule;
  begin_kernel();
  if (threadIdx.x < sizeof(DeviceRule) / 4)  // once: it may lie in the host's memory
    reinterpret_cast<uint32_t*>(&own_rule)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(rules + blockIdx.x)[threadIdx.x];
  __syncthreads();
  const DeviceRule rule = own_rule;
  float* x = logits + blockIdx.x * int64_t{v};
  Row row{x, v, 0, rule.scale};
  Range range = range_of(s, row);
  DeviceChoice choice{0, -1, 0, 0};
  if (rule.wants_probability && range.orderable) {
    choice.top = logit_of(range.best);
    choice.total = weigh(s, {x, v, choice.top, choice::kNaturalScale});
  }
  if (rule.changes > 0) {
    __syncthreads();
    for (int i = rule.first_change + static_cast<int>(threadIdx.x); i < rule.first_change + rule.changes;
         i += kThreads) {
      const DeviceChange c = changes[i];
      saved[i] = x[c.id];
      x[c.id] = choice::changed(x[c.id], c.repeated != 0, rule.repetition, c.less, c.more);
    }
    __syncthreads();
    range = range_of(s, row);
  }
  row.top = logit_of(range.best);
  if (range.orderable) choice.id = rule.greedy ? choice::id_of(range.best) : sample(s, row, range.lowest, rule);
  __syncthreads();
  for (int i = rule.first_change + static_cast<int>(threadIdx.x); i < rule.first_change + rule.changes; i += kThreads)
    x[changes[i].id] = saved[i];
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (choice.id < 0) choice = {0, -1, 0, 0};
  if (rule.wants_probability && choice.id >= 0) choice.logit = x[choice.id];
  choices[blockIdx.x] = choice;
}

__global__ void feed_rows(const DeviceChoice* choices, const int32_t* from, int rows, int32_t* ids) {
  begin_kernel();
  for (int i = threadIdx.x; i < rows; i += blockDim.x) {
    const int place = from[i];  // once: it may lie in the host's memory
    if (place >= 0) ids[i] = max(choices[place].id, 0);
  }
}

}  // namespace

void feed_tokens(Stream stream, const DeviceChoice* choices, const int32_t* from, int64_t rows, int32_t* ids) {
  launch("feeding tokens", stream, dim3(1), 256, 0, feed_rows, choices, from, static_cast<int>(rows), ids);
}

void choose(Stream stream, float* logits, int64_t v, int64_t rows, const DeviceRule* rules, const DeviceChange* changes,
            float* saved, DeviceChoice* choices) {
  if (rows == 0) return;
  launch("choosing tokens", stream, dim3(static_cast<unsigned>(rows)), kThreads, 0, choose_rows, logits,
         static_cast<int>(v), rules, changes, saved, choices);
}

}  // namespace fidelio::cuda
