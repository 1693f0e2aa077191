// This file chooses tokens from rows of logits. A row is read by a cluster of thread blocks (Hopper; otherwise by
// one), an equal part each, and settled by the first of them. All sums are of integers and all orders are total, so
// threads may work in any order.
//
//   range     finds the best token, and whether all can be ordered; the greedy choice ends here
//   race      computes the kept tokens' arrivals (choice_race.h), the first of which is the choice; without top-k and
//             top-p all blocks run it, and that is all
//   weigh     otherwise: adds up all weights, and counts the tokens near the best, for sixteen ideas of near
//   gather    takes as few of the nearest as settle the filters into the first block's shared memory, sorted, with
//             their weights added up; each filter is then a look-up, and the race is among them
//   narrow    if the nearest do not settle a look-up (a flat row, a large top-k), the first block divides the tokens
//             into bins and gathers the one bin that matters; if it is too large, it is divided again by the digits of
//             ranks
//
// This file is compiled without fused multiply-adds, so that choice_arithmetic.h gives the same bits here and on the
// host.
#include "kernels/cuda/rows/choose.h"

#include "kernels/cuda/rows/choose_block.cuh"

namespace fidelio::cuda {
namespace {

struct Range {
  uint64_t best;  // a rank
  float lowest;
  bool orderable;
};
template <int kBlocks>
__device__ Range range_of(Blocks<kBlocks>& blocks, const Row& row) {
  Shared& s = blocks.s;
  uint64_t best = 0, worst = 0;
  bool bad = false;
  row.for_tokens([&](float x, int id) {
    const uint64_t rank = choice::rank_of(x, id);
    best = max(best, rank);
    worst = max(worst, ~rank);
    bad = bad || !(x < __builtin_inff());
  });
  const bool any_bad = __syncthreads_or(bad);
  over_block(s, best, worst, Most());
  const Found* found = blocks.exchange([&](Found& place, int lane) {
    if (lane == 0) place.best = best, place.worst = worst, place.bad = any_bad;
  });
  bool orderable = true;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    best = max(best, found[i].best);
    worst = max(worst, found[i].worst);
    orderable = orderable && found[i].bad == 0;
  }
  return {best, logit_of(~worst), orderable && logit_of(best) > -__builtin_inff()};
}

struct Weights {
  uint64_t total;
  const Found* found;  // found[block].near[i] counts its tokens by the first cut within which they are
};
template <int kBlocks>
__device__ Weights weigh(Blocks<kBlocks>& blocks, const Row& row) {
  Shared& s = blocks.s;
  if (threadIdx.x < kCuts) s.near[threadIdx.x] = 0;
  __syncthreads();
  uint64_t total = 0, unused = 0, counts[kCuts / 4] = {};  // four counts of 16 bits each
  row.for_tokens([&](float x, int) {
    const float t = row.distance(x);
    total += choice::weight_at(t);
    const int halvings = static_cast<int>(fminf(t, choice::kFarthest));
    if (halvings >= kNearer[kCuts - 1]) return;
    const int cut = cut_of(halvings);
    const uint64_t one = uint64_t{1} << (16 * (cut % 4));
#pragma unroll
    for (int i = 0; i < kCuts / 4; ++i)
      if (cut / 4 == i) counts[i] += one;
  });
#pragma unroll
  for (int i = 0; i < kCuts; i += 2) {  // two at once, because a warp counts fewer than 2^16
    const uint32_t sum = __reduce_add_sync(~0u, static_cast<uint32_t>(counts[i / 4] >> (16 * (i % 4))));
    if (threadIdx.x % 32 != 0) continue;
    if ((sum & 0xffff) != 0) atomicAdd(&s.near[i], sum & 0xffff);
    if (sum >> 16 != 0) atomicAdd(&s.near[i + 1], sum >> 16);
  }
  over_block(s, total, unused, Sum());  // its barrier completes the counts
  const Found* found = blocks.exchange([&](Found& place, int lane) {
    place.near[lane] = s.near[lane];
    if (lane == 0) place.total = total;
  });
  total = 0;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) total += found[i].total;
  return {total, found};
}

template <int kBlocks>
__device__ int32_t race_of_all(Blocks<kBlocks>& blocks, const Row& row, const DeviceRule& rule) {
  uint64_t behind = race(row, rule, 0), unused = 0;
  over_block(blocks.s, behind, unused, Most());
  const Found* found = blocks.exchange([&](Found& place, int lane) {
    if (lane == 0) place.behind = behind;
  });
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) behind = max(behind, found[i].behind);
  return static_cast<int32_t>(static_cast<uint32_t>(~behind));
}

// Sorted holds tokens in order, kEach in each thread, with the weight of all before. Past the last token, ranks are
// 0.
struct Sorted {
  uint64_t rank[kEach], weight[kEach], before;  // before the thread's first
  int count;
  uint64_t total;
};

// Sorts the ranks in s.ranks, the best first, with a bitonic network. Exchanges within 32 places stay within a warp.
__device__ __noinline__ void sort(Shared& s, int count) {
  int size = 32;
  while (size < count) size *= 2;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = count + thread; i < size; i += kThreads) s.ranks[i] = 0;
  __syncthreads();
  const auto within_warps = [&](int run) {  // exchanges over a distance of less than 32, in runs of up to this length
#pragma unroll 1
    for (int i = thread; i < size; i += kThreads) {
      uint64_t own = s.ranks[i];
#pragma unroll 1
      for (int r = run <= 32 ? 2 : run; r <= run; r *= 2)
#pragma unroll 1
        for (int apart = min(r / 2, 16); apart > 0; apart /= 2) {
          const uint64_t other = __shfl_xor_sync(~0u, own, apart);
          const bool best = ((i & apart) == 0) == ((i & r) == 0);
          own = best == (own > other) ? own : other;
        }
      s.ranks[i] = own;
    }
    __syncthreads();
  };
#pragma unroll 1
  for (int run = 32; run <= size; run *= 2) {
#pragma unroll 1
    for (int apart = run / 2; apart >= 32; apart /= 2) {
#pragma unroll 1
      for (int pair = thread; pair < size / 2; pair += kThreads) {
        const int i = (pair & ~(apart - 1)) * 2 + (pair & (apart - 1)), other = i + apart;
        const uint64_t a = s.ranks[i], b = s.ranks[other];
        if ((a < b) == ((i & run) == 0)) s.ranks[i] = b, s.ranks[other] = a;
      }
      __syncthreads();
    }
    within_warps(run);
  }
}

// Sorts the first s.gathered ranks of s, whose tokens come after others of weight `before`. All threads must call it.
__device__ Sorted sorted(Shared& s, const Row& row, int count, uint64_t before) {
  sort(s, count);
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
  const SumsBefore sums = sum_before(s.of_warp, own);
  sorted.before = before + sums.before;
  sorted.total = before + sums.all;
  return sorted;
}

// Gathers the tokens that pass, at most kRoom, which come after others of weight `before`. All threads of the first
// block must call it, and no others.
template <typename Passes>
__device__ Sorted gather(Shared& s, const Row& row, uint64_t before, const Passes& passes) {
  __syncthreads();
  if (threadIdx.x == 0) s.gathered = 0;
  __syncthreads();
  row.for_tokens([&](float x, int id) {
    if (passes(x, id)) s.ranks[atomicAdd(&s.gathered, 1)] = choice::rank_of(x, id);
  });
  __syncthreads();
  return sorted(s, row, static_cast<int>(s.gathered), before);
}

// A Prefix is the first tokens of the order: what they weigh, and the last of them.
struct Prefix {
  uint64_t weight, last;
};
// Wanted says how long a prefix must be: the shortest with at least so much weight, or with so many tokens.
struct Wanted {
  uint64_t amount;
  bool of_tokens;
};

// Finds the prefix, which must exist and end among these tokens. `tokens_before` tokens are in front of them. All
// threads must call it.
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

// ---- The next functions narrow down where a prefix ends.

// A Part is the tokens of one bin of distances whose ranks begin with these digits.
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

// Counts the tokens that pass in bins in shared memory.
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

// Returns the bin in which the prefix ends, and adds what is before it to `part`.
__device__ int narrow(Shared& s, Wanted wanted, Part& part) {
  static_assert(kBins == 2 * kThreads);
  uint64_t weight[2], count[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int bin = static_cast<int>(threadIdx.x) * 2 + j;
    weight[j] = uint64_t{s.bins.high[bin]} << 32 | s.bins.low[bin];
    count[j] = s.bins.count[bin];
  }
  uint64_t weight_before = part.weight_before + sum_before(s.of_warp, weight[0] + weight[1]).before,
           tokens_before = part.tokens_before + sum_before(s.of_warp2, count[0] + count[1]).before;
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

// Finds the prefix among all tokens of the row, which must have one. It is not inlined, so that the usual path stays
// short.
__device__ __noinline__ Prefix look_up_in_all(Shared& s, const Row& row, float lowest, Wanted wanted) {
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
    const auto digit_of = [&](float x, int id) {  // the largest comes first
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

// ---- The next functions make a choice.

// Decides how near the tokens are that are gathered. Sorting takes time, so it gathers no more than settle the
// choice, or as many as there is room for. It uses the counts of weigh(), so it has no influence on what is chosen.
// The first warp does this, first with one lane for each cut, then with one for each block. s.gathered becomes the
// number that the blocks before this one gather, and s.answer the cut and the number of all.
template <int kBlocks>
__device__ void plan_gathering(const Blocks<kBlocks>& blocks, const Weights& weights, int v, const DeviceRule& rule) {
  static_assert(kCuts < 32 && kBlocks <= 32);
  const int lane = static_cast<int>(threadIdx.x);
  const auto sum_to_here = [&](auto value) {
    for (int d = 1; d < 32; d *= 2)
      if (const auto other = __shfl_up_sync(~0u, value, d); lane >= d) value += other;
    return value;
  };
  uint32_t near = 0;
  uint64_t bound = 0;  // a bound on the weight of the lane's tokens
  if (lane < kCuts) {
    for (int i = 0; i < kBlocks; ++i) near += weights.found[i].near[lane];
    bound = uint64_t{near} << (choice::kWeightBits - (lane > 0 ? kNearer[lane - 1] : 0));
  }
  const uint32_t tokens = sum_to_here(near), counted = __shfl_sync(~0u, tokens, 31);
  const uint64_t bounds = sum_to_here(bound),
                 beyond = __shfl_sync(~0u, bounds, 31) - bounds +
                          (uint64_t{static_cast<uint32_t>(v) - counted} << (choice::kWeightBits - kNearer[kCuts - 1]));
  const bool by_count = rule.top_k > 0 && rule.top_k < v;
  const uint64_t wanted = by_count ? static_cast<uint64_t>(rule.top_k) : choice::part_of(rule.top_p, weights.total);
  const bool fits = lane < kCuts && tokens <= kRoom;
  const uint32_t fitting = __ballot_sync(~0u, fits),
                 settled = __ballot_sync(~0u, fits && (by_count ? tokens >= wanted : beyond <= weights.total - wanted));
  const int last =
      // -1 if there is none.
      settled != 0 ? __ffs(static_cast<int>(settled)) - 1 : 31 - __clz(static_cast<int>(fitting));
  uint32_t own = 0;
#pragma unroll
  for (int j = 0; j < kCuts; ++j)
    if (lane < kBlocks && j <= last) own += weights.found[lane].near[j];
  const uint32_t to_here = sum_to_here(own);
  if (lane == blocks.rank()) blocks.s.gathered = to_here - own;
  if (lane == 31) blocks.s.answer[0] = last < 0 ? 0 : kNearer[last], blocks.s.answer[1] = to_here;
}

// Sends the nearest tokens to the first block, with each block's behind those of the blocks before it. Returns their
// number.
template <int kBlocks>
__device__ int gather_nearest(Blocks<kBlocks>& blocks, const Row& row, const Weights& weights, const DeviceRule& rule) {
  Shared& s = blocks.s;
  uint64_t* const ranks = blocks.of(0).ranks;
  if (threadIdx.x < 32) plan_gathering(blocks, weights, row.v, rule);
  __syncthreads();
  const int cut = static_cast<int>(s.answer[0]), count = static_cast<int>(s.answer[1]);
  row.for_tokens([&](float x, int id) {
    if (static_cast<int>(fminf(row.distance(x), choice::kFarthest)) < cut)
      ranks[atomicAdd(&s.gathered, 1)] = choice::rank_of(x, id);
  });
  blocks.meet();
  return count;
}

// Applies the filters and then runs the race, among the nearest tokens if they settle the filters. The first block
// does this.
__device__ int32_t choose_filtered(Shared& s, const Row& row, float lowest, const DeviceRule& rule,
                                   const Weights& weights, int gathered) {
  const Sorted nearest = sorted(s, row, gathered, 0);
  bool intact = true;  // whether s.ranks is unchanged; a look-up among all tokens overwrites it
  Prefix kept{weights.total, 0};
#pragma unroll 1
  for (int filter = 0; filter < 2; ++filter) {  // one piece of code serves top-k and top-p
    if (filter == 0 && (rule.top_k <= 0 || rule.top_k >= row.v)) continue;
    if (filter == 1 && rule.top_p >= 1) continue;
    const Wanted wanted{filter == 0 ? static_cast<uint64_t>(rule.top_k) : choice::part_of(rule.top_p, kept.weight),
                        filter == 0};
    const bool settled = wanted.amount <= (wanted.of_tokens ? static_cast<uint64_t>(nearest.count) : nearest.total);
    intact = intact && settled;
    kept = settled ? look_up(s, nearest, 0, wanted) : look_up_in_all(s, row, lowest, wanted);
  }
  uint64_t behind = 0, unused = 0;
  if (intact) {
    for (int i = static_cast<int>(threadIdx.x); i < nearest.count; i += kThreads) {
      const uint64_t rank = s.ranks[i];
      if (rank >= kept.last) behind = max(behind, behind_of(row, rule, logit_of(rank), choice::id_of(rank)));
    }
  } else {
    behind = race(row, rule, kept.last);
  }
  over_block(s, behind, unused, Most());
  return static_cast<int32_t>(static_cast<uint32_t>(~behind));
}

// Returns the choice in the first block of a row; the others return no choice.
template <int kBlocks>
__device__ DeviceChoice choose_row(Blocks<kBlocks>& blocks, Row& row, const DeviceChange* changes, float* saved,
                                   float* x) {
  Range range = range_of(blocks, row);  // the rule arrives in the meantime
  const DeviceRule& rule = blocks.s.rule;
  row.scale = rule.scale;
  DeviceChoice choice{0, -1, 0, 0};
  if (rule.wants_probability && range.orderable) {
    Row natural = row;
    natural.top = choice.top = logit_of(range.best);
    natural.scale = choice::kNaturalScale;
    choice.total = weigh(blocks, natural).total;
  }
  if (rule.changes > 0) {
    blocks.meet();  // nobody reads what is about to change
    if (blocks.rank() == 0)
      for (int i = rule.first_change + static_cast<int>(threadIdx.x); i < rule.first_change + rule.changes;
           i += kThreads) {
        const DeviceChange c = changes[i];
        saved[i] = x[c.id];
        x[c.id] = choice::changed(x[c.id], c.repeated != 0, rule.repetition, c.less, c.more);
      }
    blocks.meet();
    range = range_of(blocks, row);
  }
  if (!range.orderable) return {0, -1, 0, 0};
  row.top = logit_of(range.best);
  if (rule.greedy) {
    choice.id = choice::id_of(range.best);
    return choice;
  }
  if (rule.top_p >= 1 && (rule.top_k <= 0 || rule.top_k >= row.v)) {
    choice.id = race_of_all(blocks, row, rule);
    return choice;
  }
  const Weights weights = weigh(blocks, row);
  const int gathered = gather_nearest(blocks, row, weights, rule);
  if (blocks.rank() == 0) choice.id = choose_filtered(blocks.s, row.whole(), range.lowest, rule, weights, gathered);
  return choice;
}

template <int kBlocks>
__global__ void __launch_bounds__(kThreads)
    choose_rows(float* logits, int v, const DeviceRule* rules, const DeviceChange* changes, float* saved,
                DeviceChoice* choices) {
  __shared__ Shared s;
  if constexpr (kBlocks > 1) ptx::cluster_arrive_relaxed();
  begin_kernel();
  Blocks<kBlocks> blocks{s};
  static_assert(sizeof(DeviceRule) % 4 == 0 && sizeof(DeviceRule) / 4 <= 32);
  if (threadIdx.x < sizeof(DeviceRule) / 4)  // it is read once, because it may lie in the host's memory
    reinterpret_cast<uint32_t*>(&s.rule)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(rules + blockIdx.x)[threadIdx.x];
  float* x = logits + blockIdx.x * int64_t{v};
  const int each = (v + 4 * kBlocks - 1) / (4 * kBlocks) * 4, begin = min(blocks.rank() * each, v);
  Row row{x, v, begin, min(begin + each, v)};
  if constexpr (kBlocks > 1) ptx::cluster_wait();  // all blocks have begun, so that they can receive values
  DeviceChoice choice = choose_row(blocks, row, changes, saved, x);
  if (blocks.rank() != 0) return;  // it has read all that it will read, since the blocks have met
  const DeviceRule& rule = s.rule;
  __syncthreads();
  for (int i = rule.first_change + static_cast<int>(threadIdx.x); i < rule.first_change + rule.changes; i += kThreads)
    x[changes[i].id] = saved[i];
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (rule.wants_probability && choice.id >= 0) choice.logit = x[choice.id];
  choices[blockIdx.x] = choice;
}

__global__ void feed_rows(const DeviceChoice* choices, const int32_t* from, int rows, int32_t* ids) {
  begin_kernel();
  for (int i = threadIdx.x; i < rows; i += blockDim.x) {
    const int place = from[i];  // it is read once, because it may lie in the host's memory
    if (place >= 0) ids[i] = max(choices[place].id, 0);
  }
}

template <int kBlocks>
void ask(Stream stream, float* logits, int64_t v, int64_t rows, const DeviceRule* rules, const DeviceChange* changes,
         float* saved, DeviceChoice* choices) {
  launch("choosing tokens", stream, LaunchShape{dim3(static_cast<unsigned>(rows), 1, kBlocks), kThreads, 0, kBlocks},
         choose_rows<kBlocks>, logits, static_cast<int>(v), rules, changes, saved, choices);
}
// Returns how many rows the device handles at a time with so many thread blocks each.
template <int kBlocks>
int rows_at_once() {
  static const int count = clusters_at_once(kThreads, 0, kBlocks, choose_rows<kBlocks>);
  return count;
}

}  // namespace

void feed_tokens(Stream stream, const DeviceChoice* choices, const int32_t* from, int64_t rows, int32_t* ids) {
  launch("feeding tokens", stream, dim3(1), 256, 0, feed_rows, choices, from, static_cast<int>(rows), ids);
}

void choose(Stream stream, float* logits, int64_t v, int64_t rows, const DeviceRule* rules, const DeviceChange* changes,
            float* saved, DeviceChoice* choices) {
  if (rows == 0) return;
  if (!is_hopper()) return ask<1>(stream, logits, v, rows, rules, changes, saved, choices);
  if (rows <= rows_at_once<8>()) return ask<8>(stream, logits, v, rows, rules, changes, saved, choices);
  if (rows <= rows_at_once<4>()) return ask<4>(stream, logits, v, rows, rules, changes, saved, choices);
  if (rows <= rows_at_once<2>()) return ask<2>(stream, logits, v, rows, rules, changes, saved, choices);
  ask<1>(stream, logits, v, rows, rules, changes, saved, choices);
}

}  // namespace fidelio::cuda
