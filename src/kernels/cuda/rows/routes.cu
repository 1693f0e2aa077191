#include "kernels/cuda/rows/routes.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

__global__ void __launch_bounds__(kThreads)
    multiply_router(const float* x, const float* w, const float* bias, int d, int experts, float* logits) {
  begin_kernel();
  const int expert = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (expert >= experts) return;
  const float *row = x + blockIdx.y * int64_t{d}, *weights = w + expert * int64_t{d};
  float sum = 0;
  for (int column = lane * 4; column < d; column += 128) {
    const float4 a = load4(row, column, d), b = load4(weights, column, d);
    sum = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
  }
  sum = sum_of_warp(sum);
  if (lane == 0) logits[blockIdx.y * int64_t{experts} + expert] = bias ? sum + bias[expert] : sum;
}

// Returns a number that is larger for what comes first: for larger logits, and among equal ones for the first. NaN
// comes last. 0 means that it is already taken.
__device__ __forceinline__ uint64_t place_of(float logit, int expert) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);
  const uint32_t order = isnan(logit) ? 0 : (bits & 0x80000000u ? ~bits : bits | 0x80000000u);
  return uint64_t{order} << 32 | static_cast<uint32_t>(~expert);
}
__device__ __forceinline__ int expert_of(uint64_t place) { return ~static_cast<int>(static_cast<uint32_t>(place)); }

// The scores of a row's experts, but for a common divisor (step/routing.cc).
struct Scores {
  const float* logits;
  bool sigmoid;
  float largest = 0;
  __device__ __forceinline__ double operator()(int expert) const {
    const double logit = static_cast<double>(logits[expert]);
    return sigmoid ? 1 / (1 + exp(-logit)) : exp(logit - static_cast<double>(largest));
  }
  // All lanes return the divisor that the scores of all experts have.
  __device__ __forceinline__ double divisor(int experts) const {
    if (sigmoid) return 1;
    double sum = 0;
    for (int expert = threadIdx.x; expert < experts; expert += 32) sum += (*this)(expert);
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    return sum;
  }
};

// Writes the choice of a row: `own` is that of each lane below k, and lanes beyond have the number of experts. The
// experts come in ascending order. `divisor` is that of the scores unless they are renormalised.
__device__ __forceinline__ void write_choice(const Scores& scores, const RoutingRule& rule, const float* adjustments,
                                             int own, double divisor, int32_t* chosen, float* shares) {
  const int lane = threadIdx.x;
  const double mine = own < rule.experts ? scores(own) : 0;
  double sum = mine;
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  if (!rule.renormalised)
    sum = divisor;
  else if (scores.sigmoid)
    sum += kLeastScores;
  int rank = 0;
  for (int j = 0; j < rule.per_row; ++j) rank += __shfl_sync(~0u, own, j) < own;
  if (lane >= rule.per_row) return;
  const int64_t at = blockIdx.x * int64_t{rule.per_row} + rank;
  const double scale = rule.scaled ? static_cast<double>(adjustments[rule.experts + own]) : 1;
  chosen[at] = own;
  shares[at] = static_cast<float>(mine / sum * rule.factor * scale);
}

// Each warp has a row. It takes the expert of the largest logit of what is left k times.
template <int kOwn>
__global__ void __launch_bounds__(32)
    choose(const float* logits, RoutingRule rule, const float* adjustments, int32_t* chosen, float* shares) {
  begin_kernel();
  const int lane = threadIdx.x;
  Scores scores{logits + blockIdx.x * int64_t{rule.experts}, rule.scoring == Scoring::sigmoid};
  uint64_t places[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int expert = i * 32 + lane;
    places[i] = expert < rule.experts ? place_of(scores.logits[expert], expert) : 0;
  }
  int own = rule.experts;  // the lane's choice; lanes beyond k have none
  for (int j = 0; j < rule.per_row; ++j) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) best = max(best, places[i]);
    for (int apart = 16; apart > 0; apart /= 2) best = max(best, __shfl_xor_sync(~0u, best, apart));
    const int expert = expert_of(best);
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (i * 32 + lane == expert) places[i] = 0;
    if (j == 0) scores.largest = scores.logits[expert];
    if (lane == j) own = expert;
  }
  const double divisor = rule.renormalised ? 1 : scores.divisor(rule.experts);
  write_choice(scores, rule, adjustments, own, divisor, chosen, shares);
}

// Returns a number that is larger for larger values, and 1 for NaN. 0 means that it is already taken.
__device__ __forceinline__ uint64_t order_of(double value) {
  if (isnan(value)) return 1;
  const auto bits = static_cast<uint64_t>(__double_as_longlong(value == 0 ? 0.0 : value));
  return bits >> 63 ? ~bits : bits | uint64_t{1} << 63;
}
__device__ __forceinline__ double value_of(uint64_t order) {
  if (order <= 1) return __longlong_as_double(0x7ff8000000000000);
  return __longlong_as_double(static_cast<int64_t>(order >> 63 ? order & ~(uint64_t{1} << 63) : ~order));
}
// Places are the orders of the experts that the lanes of a warp have: lane l has experts l, l + 32, ..
template <int kOwn>
struct Places {
  uint64_t of[kOwn];

  // Takes the first of what is left among experts [first, last). All lanes return its order, and its number as
  // `expert`.
  __device__ __forceinline__ uint64_t take(int first, int last, int* expert) {
    const int lane = threadIdx.x;
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (i * 32 + lane >= first && i * 32 + lane < last) best = max(best, of[i]);
    for (int apart = 16; apart > 0; apart /= 2) best = max(best, __shfl_xor_sync(~0u, best, apart));
    uint32_t lowest = ~0u;
#pragma unroll
    for (int i = kOwn; i-- > 0;)
      if (of[i] == best && i * 32 + lane >= first && i * 32 + lane < last) lowest = i * 32 + lane;
    *expert = static_cast<int>(__reduce_min_sync(~0u, lowest));
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (i * 32 + lane == *expert) of[i] = 0;
    return best;
  }
};

// All lanes return the groups that a row keeps, a bit each: those whose two best sum to most.
template <int kOwn>
__device__ __forceinline__ uint32_t groups_of(const Places<kOwn>& places, const RoutingRule& rule) {
  const int each = rule.experts / rule.groups, lane = threadIdx.x;
  uint64_t own = 0;  // the order of the lane's group
  for (int group = 0; group < rule.groups; ++group) {
    Places<kOwn> left = places;
    int taken;
    const double sum = value_of(left.take(group * each, (group + 1) * each, &taken)) +
                       value_of(left.take(group * each, (group + 1) * each, &taken));
    if (lane == group) own = order_of(sum);
  }
  int rank = 0;
  for (int group = 0; group < rule.groups; ++group) {
    const uint64_t other = __shfl_sync(~0u, own, group);
    rank += other > own || (other == own && group < lane);
  }
  return __ballot_sync(~0u, lane < rule.groups && rank < rule.groups_per_row);
}

// The same for rules that choose by scores, corrected ones or those of groups.
template <int kOwn>
__global__ void __launch_bounds__(32)
    choose_by_score(const float* logits, RoutingRule rule, const float* adjustments, int32_t* chosen, float* shares) {
  begin_kernel();
  const int lane = threadIdx.x;
  Scores scores{logits + blockIdx.x * int64_t{rule.experts}, rule.scoring == Scoring::sigmoid};
  scores.largest = -INFINITY;
  for (int expert = lane; expert < rule.experts; expert += 32)
    scores.largest = fmaxf(scores.largest, scores.logits[expert]);
  for (int apart = 16; apart > 0; apart /= 2)
    scores.largest = fmaxf(scores.largest, __shfl_xor_sync(~0u, scores.largest, apart));
  const double divisor = scores.divisor(rule.experts);
  Places<kOwn> places;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int expert = i * 32 + lane;
    if (expert >= rule.experts)
      places.of[i] = 0;
    else
      places.of[i] =
          order_of(scores(expert) / divisor + (rule.corrected ? static_cast<double>(adjustments[expert]) : 0));
  }
  if (rule.groups > 1) {
    const uint32_t kept = groups_of(places, rule);
    const int each = rule.experts / rule.groups;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (i * 32 + lane < rule.experts && !(kept >> (i * 32 + lane) / each & 1)) places.of[i] = 0;
  }
  int own = rule.experts;
  for (int j = 0; j < rule.per_row; ++j) {
    int expert;
    places.take(0, rule.experts, &expert);
    if (lane == j) own = expert;
  }
  write_choice(scores, rule, adjustments, own, divisor, chosen, shares);
}

__global__ void __launch_bounds__(kThreads) take(const float* x, int columns, const int32_t* rows, float* y) {
  begin_kernel();
  const int column = (blockIdx.y * kThreads + static_cast<int>(threadIdx.x)) * 4;
  if (column >= columns) return;
  store4(y + blockIdx.x * int64_t{columns}, column, columns,
         load4(x + rows[blockIdx.x] * int64_t{columns}, column, columns));
}

__global__ void __launch_bounds__(kThreads) add_parts(const float* y, int d, RowSlots of, float* x) {
  begin_kernel();
  const int column = blockIdx.y * kThreads + static_cast<int>(threadIdx.x);
  if (column >= d) return;
  float* to = x + blockIdx.x * int64_t{d} + column;
  float sum = *to;
  for (int i = 0; i < of.per_row; ++i) {
    const int64_t place = blockIdx.x * int64_t{of.per_row} + i, slot = of.slots ? of.slots[place] : place;
    sum = fmaf(of.shares[slot], y[slot * d + column], sum);
  }
  *to = sum;
}

// Each thread block has an expert. It counts all experts' slots, to know how many slots and tiles come before its
// own, and then goes through its own slots in order, with a slot in each thread.
__global__ void __launch_bounds__(kThreads)
    deal(const int32_t* experts, const float* shares, int slots, int per_row, int tile, TiledSlots to) {
  begin_kernel();
  __shared__ int counts[kMostExperts];
  __shared__ int warps[2][kWarps];
  const int expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto tiles_of = [&](int rows) { return (rows + tile - 1) / tile; };
  for (int e = threadIdx.x; e <= expert; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < slots; i += kThreads)
    if (experts[i] <= expert) atomicAdd(&counts[experts[i]], 1);
  __syncthreads();
  int slots_before = 0, tiles_before = 0;  // every warp computes these for itself
  for (int e = lane; e < expert; e += 32) slots_before += counts[e], tiles_before += tiles_of(counts[e]);
  slots_before = __reduce_add_sync(~0u, slots_before), tiles_before = __reduce_add_sync(~0u, tiles_before);
  const int own = counts[expert];
  if (expert == static_cast<int>(gridDim.x) - 1 && threadIdx.x == 0) *to.count = tiles_before + tiles_of(own);
  for (int t = threadIdx.x; t < tiles_of(own); t += kThreads)
    to.tiles[tiles_before + t] = {expert, slots_before + t * tile, min(tile, own - t * tile)};
  int done = 0;
  for (int first = 0, turn = 0; done < own; first += kThreads, turn ^= 1) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool mine = i < slots && experts[i] == expert;
    const uint32_t mines = __ballot_sync(~0u, mine);
    if (lane == 0) warps[turn][warp] = __popc(mines);
    __syncthreads();
    int earlier = done;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) earlier += warps[turn][w];
      done += warps[turn][w];
    }
    if (!mine) continue;
    earlier += __popc(mines & ((1u << lane) - 1));
    const int slot = slots_before + earlier;
    to.rows[slot] = i / per_row;
    to.shares[slot] = shares[i];
    to.places[slot] = (tiles_before + earlier / tile) * tile + earlier % tile;
    to.of_rows[i] = slot;
  }
}

// Each warp has a block of 128 columns of a row, which lies alone or in a tile.
template <typename Values>
__device__ __forceinline__ void prepare_one(int columns, const int32_t* places, uint8_t* blocks, const Values& values) {
  const int column_blocks = (columns + kBlockColumns - 1) / kBlockColumns, block = blockIdx.y * 8 + threadIdx.x / 32,
            place = places ? places[blockIdx.x] : static_cast<int>(blockIdx.x) * kTiledRows;
  if (block >= column_blocks) return;
  static_assert(input_rows(1) == kTiledRows);
  prepare_block(values(block * kBlockColumns + threadIdx.x % 32 * 4), place % kTiledRows, kTiledRows, block,
                column_blocks, {blocks + place / kTiledRows * input_bytes(kTiledRows, column_blocks), {}});
}
__global__ void __launch_bounds__(kThreads)
    prepare_each(const float* x, const int32_t* rows, const int32_t* places, int columns, uint8_t* blocks) {
  begin_kernel();
  const float* row = x + (rows ? rows[blockIdx.x] : static_cast<int>(blockIdx.x)) * int64_t{columns};
  prepare_one(columns, places, blocks, [&](int column) { return load4(row, column, columns); });
}
__global__ void __launch_bounds__(kThreads)
    gate_each(const float* gate, const float* up, const int32_t* places, int columns, uint8_t* blocks) {
  begin_kernel();
  const int64_t first = blockIdx.x * int64_t{columns};
  prepare_one(columns, places, blocks, [&](int column) {
    return gated(load4(gate + first, column, columns), load4(up + first, column, columns));
  });
}

dim3 grid_of(int64_t rows, int64_t pieces, int64_t together) {
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>((pieces + together - 1) / together));
}
dim3 blocks_of(int64_t rows, int64_t columns) {
  return grid_of(rows, (columns + kBlockColumns - 1) / kBlockColumns, 8);
}

}  // namespace

void router_logits(Stream stream, const float* x, const RouterWeight& router, int64_t n, int64_t d, int experts,
                   float* logits) {
  launch("multiplying by a router", stream,
         dim3(static_cast<unsigned>((experts + kWarps - 1) / kWarps), static_cast<unsigned>(n)), kThreads, 0,
         multiply_router, x, router.w, router.bias, static_cast<int>(d), experts, logits);
}

void choose_experts(Stream stream, const float* logits, int64_t n, const RoutingRule& rule, const float* adjustments,
                    int32_t* experts, float* shares) {
  const auto of_size = [&](auto few, auto more, auto most) {
    return rule.experts <= 128 ? few : rule.experts <= 256 ? more : most;
  };
  const auto kernel = rule.by_score()
                          ? of_size(choose_by_score<4>, choose_by_score<8>, choose_by_score<kMostExperts / 32>)
                          : of_size(choose<4>, choose<8>, choose<kMostExperts / 32>);
  launch("choosing experts", stream, dim3(static_cast<unsigned>(n)), 32, 0, kernel, logits, rule, adjustments, experts,
         shares);
}

void take_rows(Stream stream, const float* x, int64_t columns, const int32_t* rows, int64_t count, float* y) {
  launch("rows into slots", stream, grid_of(count, columns, kThreads * 4), kThreads, 0, take, x,
         static_cast<int>(columns), rows, y);
}

void add_slots(Stream stream, const float* y, int64_t n, int64_t d, const RowSlots& of, float* x) {
  launch("adding what experts give", stream, grid_of(n, d, kThreads), kThreads, 0, add_parts, y, static_cast<int>(d),
         of, x);
}

void deal_slots(Stream stream, const int32_t* experts, const float* shares, int64_t slots, const RoutingRule& rule,
                int tile, const TiledSlots& to) {
  launch("dealing out slots", stream, dim3(static_cast<unsigned>(rule.experts)), kThreads, 0, deal, experts, shares,
         static_cast<int>(slots), rule.per_row, tile, to);
}

void prepare_tiled(Stream stream, const float* x, const int32_t* rows, const int32_t* places, int64_t slots,
                   int64_t columns, uint8_t* blocks) {
  launch("preparing slots", stream, blocks_of(slots, columns), kThreads, 0, prepare_each, x, rows, places,
         static_cast<int>(columns), blocks);
}

void gate_tiled(Stream stream, const float* gate, const float* up, const int32_t* places, int64_t slots,
                int64_t columns, uint8_t* blocks) {
  launch("gating slots", stream, blocks_of(slots, columns), kThreads, 0, gate_each, gate, up, places,
         static_cast<int>(columns), blocks);
}

}  // namespace fidelio::cuda
