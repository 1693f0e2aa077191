// This file defines the arguments of a launch of lowbit_kernel.cuh. The launcher of each kind of code is defined in a
// lowbit_*.cu of its own, so that they compile in parallel.
#pragma once
#include <type_traits>

#include "kernels/cuda/linear/decode/lowbit_routed.h"

namespace fidelio::cuda {

// Shared memory of a Hopper multiprocessor, including 1 KB for each thread block on it.
constexpr int kMostShared = 227 * 1024;

struct LowbitTarget {
  const uint8_t* blocks;
  const float* row_factor;
  const float* bias;
  const int8_t* grid;  // the grid of the LowbitWeight
  float* y;
  int out;
  int first_row_block;  // index of this target's first row block within the launch
  float factor;
};

// An UpcomingShare is bytes to be asked for: `share` bytes by each thread block, `apart` bytes from the next one's.
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
  int scales_at;     // offset within a block
  int group_chunks;  // group / 32: 1, 2 or 4
  int rows;          // rows of this launch
  int room;          // rows that a chunk has room for
  int twice_middle;  // for high bits only: LowbitShape::twice_middle()
  float unit;        // for high bits only: the factor of their totals
  const uint8_t* x;
  bool add;
  LowbitNorm norm;  // norm of the rows of x
  LowbitJoin join;
};

// RoutedTargets takes the place of targets for the slots of experts (lowbit_routed.h).
struct RoutedTargets {
  const LowbitTarget* table[2];
  float* y_of[2];
  int outputs, blocks_each;  // outputs of a slot or a tile; row blocks of each output
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
// These are the arguments for slots in tiles of rows that share their expert.
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

// Returns Of<kind, bits, byte_scale>::launchers for a shape's integers or grid.
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
