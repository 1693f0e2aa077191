// What a launch of lowbit_kernel.cuh is told. The launcher of each code is defined in its own lowbit_*.cu, so that they
// compile side by side.
#pragma once
#include <type_traits>

#include "kernels/cuda/linear/decode/lowbit_routed.h"

namespace fidelio::cuda {

constexpr int kMostShared = 227 * 1024;  // of a Hopper multiprocessor, with 1 KB for each thread block on it

struct LowbitTarget {
  const uint8_t* blocks;
  const float* row_factor;
  const float* bias;
  const int8_t* grid;  // LowbitWeight's
  float* y;
  int out;
  int first_row_block;  // of this target within the launch
  float factor;
};

// Bytes that are asked for, so many by each thread block, so far apart.
struct UpcomingShare {
  const void* data;
  uint32_t bytes, share, apart;
};

struct LowbitArguments {
  LowbitTarget target[kMaxTogether];
  int targets;
  UpcomingShare upcoming[kMaxTogether];
  int column_blocks;
  int columns;
  int block_bytes;
  int scales_at;     // in a block
  int group_chunks;  // group / 32: 1, 2 or 4
  int rows;          // of this launch
  int room;          // for rows in a chunk
  int twice_middle;  // of a view: LowbitShape's
  float unit;        // of a view: what its totals are multiplied by in the end
  const uint8_t* x;
  bool add;
  LowbitNorm norm;  // of the row of x
  LowbitJoin join;
};

// Of lowbit_routed.h: in place of targets.
struct RoutedTargets {
  const LowbitTarget* table[2];
  float* y_of[2];
  int outputs, blocks_each;  // of a slot or a tile; row blocks of each output
};
inline RoutedTargets targets_of(const RoutedOutputs& outputs) {
  RoutedTargets targets{{}, {}, outputs.count, static_cast<int>(outputs.shape.row_blocks())};
  for (int i = 0; i < outputs.count; ++i) {
    targets.table[i] = static_cast<const LowbitTarget*>(outputs.of[i].table);
    targets.y_of[i] = outputs.of[i].y;
  }
  return targets;
}
struct RoutedArguments : LowbitArguments, RoutedTargets {
  const int32_t* experts;
  int slots_per_input, input_bytes;
};
// The same for slots in tiles of rows that share their expert.
struct TiledArguments : RoutedArguments {
  const RoutedTile* tiles;
  const int32_t* tile_count;
};

template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_rows(Stream stream, const LowbitArguments& p, int row_blocks);

template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_routed(Stream stream, const RoutedArguments& p, int row_blocks);

template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_tiled(Stream stream, const TiledArguments& p, int row_blocks);

using LowbitLauncher = void (*)(Stream, const LowbitArguments&, int row_blocks);
using RoutedLauncher = void (*)(Stream, const RoutedArguments&, int row_blocks);
using TiledLauncher = void (*)(Stream, const TiledArguments&, int row_blocks);

// Of<kind, bits, byte_scale>::launchers of a shape's integers or grid.
template <template <CodeKind, int, bool> class Of>
auto launchers_of(const LowbitShape& s) {
  constexpr CodeKind I = CodeKind::integer, G = CodeKind::grid;
  using Launchers = std::remove_const_t<decltype(Of<I, 4, false>::launchers)>;
  static constexpr Launchers integers[7][2] = {
      {Of<I, 2, false>::launchers, Of<I, 2, true>::launchers}, {Of<I, 3, false>::launchers, Of<I, 3, true>::launchers},
      {Of<I, 4, false>::launchers, Of<I, 4, true>::launchers}, {Of<I, 5, false>::launchers, Of<I, 5, true>::launchers},
      {Of<I, 6, false>::launchers, Of<I, 6, true>::launchers}, {Of<I, 7, false>::launchers, Of<I, 7, true>::launchers},
      {Of<I, 8, false>::launchers, Of<I, 8, true>::launchers}};
  static constexpr Launchers grids[5] = {Of<G, 2, false>::launchers, Of<G, 3, false>::launchers,
                                         Of<G, 4, false>::launchers, Of<G, 5, false>::launchers,
                                         Of<G, 6, false>::launchers};
  if (s.kind == CodeKind::curve) return Of<CodeKind::curve, 6, false>::launchers;
  return s.kind == G ? grids[s.bits - 2] : integers[s.bits - 2][s.byte_scale];
}

}  // namespace fidelio::cuda
