#include "kernels/cuda/rows/routes.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

__global__ void __launch_bounds__(kThreads)
    multiply_router(const float* x, const float* w, int d, int experts, float* logits) {
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
  if (lane == 0) logits[blockIdx.y * int64_t{experts} + expert] = sum;
}

// Returns a number that is larger for what comes first: for larger logits, and among equal ones for the first. NaN
// comes last. 0 means that it is already taken.
__device__ __forceinline__ uint64_t place_of(float logit, int expert) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);
  const uint32_t order = isnan(logit) ? 0 : (bits & 0x80000000u ? ~bits : bits | 0x80000000u);
  return uint64_t{order} << 32 | static_cast<uint32_t>(~expert);
}
__device__ __forceinline__ int expert_of(uint64_t place) { return ~static_cast<int>(static_cast<uint32_t>(place)); }

// Each warp has a row. It takes the first of what is left k times, and then orders the choices by their numbers.
template <int kOwn>
__global__ void __launch_bounds__(32)
    choose(const float* logits, int experts, int per_row, bool renormalised, int32_t* chosen, float* shares) {
  begin_kernel();
  const int lane = threadIdx.x;
  const float* from = logits + blockIdx.x * int64_t{experts};
  uint64_t places[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int expert = i * 32 + lane;
    places[i] = expert < experts ? place_of(from[expert], expert) : 0;
  }
  int own = experts;  // the lane's choice; lanes beyond k have none
  float largest = 0;
  for (int j = 0; j < per_row; ++j) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) best = max(best, places[i]);
    for (int apart = 16; apart > 0; apart /= 2) best = max(best, __shfl_xor_sync(~0u, best, apart));
    const int expert = expert_of(best);
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (i * 32 + lane == expert) places[i] = 0;
    if (j == 0) largest = from[expert];
    if (lane == j) own = expert;
  }
  const auto weight = [&](int expert) { return exp(static_cast<double>(from[expert]) - static_cast<double>(largest)); };
  const double mine = own < experts ? weight(own) : 0;
  double sum = mine;
  if (!renormalised) {
    sum = 0;
    for (int expert = lane; expert < experts; expert += 32) sum += weight(expert);
  }
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  int rank = 0;
  for (int j = 0; j < per_row; ++j) rank += __shfl_sync(~0u, own, j) < own;
  if (lane >= per_row) return;
  const int64_t at = blockIdx.x * int64_t{per_row} + rank;
  chosen[at] = own;
  shares[at] = static_cast<float>(mine / sum);
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

void router_logits(Stream stream, const float* x, const float* w, int64_t n, int64_t d, int experts, float* logits) {
  launch("multiplying by a router", stream,
         dim3(static_cast<unsigned>((experts + kWarps - 1) / kWarps), static_cast<unsigned>(n)), kThreads, 0,
         multiply_router, x, w, static_cast<int>(d), experts, logits);
}

void choose_experts(Stream stream, const float* logits, int64_t n, const RoutingRule& rule, int32_t* experts,
                    float* shares) {
  const auto kernel = rule.experts <= 128 ? choose<4> : rule.experts <= 256 ? choose<8> : choose<kMostExperts / 32>;
  launch("choosing experts", stream, dim3(static_cast<unsigned>(n)), 32, 0, kernel, logits, rule.experts, rule.per_row,
         rule.renormalised, experts, shares);
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
