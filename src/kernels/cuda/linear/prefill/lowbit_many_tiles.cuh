// This file says what a tile of lowbit_many.cuh is: which rows of activations, and which rows of which weight.
#pragma once
#include "kernels/cuda/linear/layout/lowbit_values.cuh"
#include "kernels/cuda/linear/prefill/lowbit_many_store.cuh"

namespace fidelio::cuda {

// ManyTiles numbers the tiles that clusters work on. Outputs change fastest, so that few activations are in use at a
// time.
struct ManyTiles {
  int pairs, count;
  template <int kTokens>
  static __device__ __forceinline__ ManyTiles of(const ManyArguments& p) {
    const int pairs = (p.row_blocks + 1) / 2;
    return {pairs, pairs * ((p.rows + kTokens - 1) / kTokens)};
  }
  template <int kTokens>
  static __device__ __forceinline__ ManyTiles of(const RoutedManyArguments& p) {
    const int pairs = (p.row_blocks + 1) / 2;
    return {pairs, pairs * *p.tile_count};
  }
};

template <int kTokens>
__device__ __forceinline__ ManyRowsAt rows_of_tile(const ManyArguments& p, int tile, const LowbitTarget& target, int) {
  return {tile * kTokens, p.rows, target.y, p.row_factor, p.add};
}
template <int kTokens>
__device__ __forceinline__ ManyRowsAt rows_of_tile(const RoutedManyArguments& p, int tile, const LowbitTarget& target,
                                                   int output) {
  const RoutedTile& of = p.tiles[tile];
  return {0, of.rows, p.y_of[output] + int64_t{of.first_slot} * target.out, p.row_factor + int64_t{tile} * kTokens,
          false};
}
__device__ __forceinline__ int64_t padded_of(const ManyArguments& p) { return many_rows(p.rows); }
__device__ __forceinline__ int64_t padded_of(const RoutedManyArguments& p) {
  return int64_t{p.most_tiles} * kRoutedRows;
}

// ManyBlocks is a thread block's row block of a tile. Past the end it is the last one again, and its result is not
// used.
struct ManyBlocks {
  const LowbitTarget* target;
  int row_block;  // index within the target
  bool there;
  const uint8_t* w;
  int output;  // index of the target
};
template <typename Traits>
__device__ __forceinline__ ManyBlocks many_blocks(const RoutedManyArguments& p, int row_block, int tile) {
  const int clamped = min(row_block, p.row_blocks - 1), output = clamped / p.blocks_each,
            local = clamped % p.blocks_each;
  const LowbitTarget& target = p.table[output][p.tiles[tile].expert];
  return {&target, local, row_block < p.row_blocks,
          target.blocks + int64_t{local} * p.column_blocks * Traits::kBlockBytes, output};
}
template <typename Traits>
__device__ __forceinline__ ManyBlocks many_blocks(const ManyArguments& p, int row_block, int) {
  const int clamped = min(row_block, p.row_blocks - 1);
  int which = 0;
  while (which + 1 < p.targets && clamped >= p.target[which + 1].first_row_block) ++which;
  const LowbitTarget& target = p.target[which];
  const int local = clamped - target.first_row_block;
  return {&target, local, row_block < p.row_blocks,
          target.blocks + int64_t{local} * p.column_blocks * Traits::kBlockBytes, which};
}

// Stores the warp's 16 outputs of a tile, for all its rows.
template <int kTokens, typename Arguments>
__device__ __forceinline__ void store_tile(const Arguments& p, const ManyBlocks& mine, int tile_of_rows, int tile16,
                                           const float (&c)[kTokens / 2]) {
  const int lane = threadIdx.x % 32;
  const ManyRowsAt rows = rows_of_tile<kTokens>(p, tile_of_rows, *mine.target, mine.output);
  const int first_output = mine.row_block * kBlockRows + tile16 * 16, output = first_output + lane / 4,
            row = rows.first + lane % 4 * 2;
  const bool whole = first_output + 16 <= mine.target->out && rows.first + kTokens <= rows.rows;
  if (!whole)
    store_part<kTokens>(rows, *mine.target, output, row, c);
  else if (p.add)
    store_whole<true, kTokens>(rows, *mine.target, output, row, c);
  else
    store_whole<false, kTokens>(rows, *mine.target, output, row, c);
}

}  // namespace fidelio::cuda
