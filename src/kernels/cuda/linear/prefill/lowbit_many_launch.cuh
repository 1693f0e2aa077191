// This file defines the arguments of a launch of lowbit_many.cuh. The launcher of each kind of code is defined in a
// lowbit_many_*.cu of its own, so that they compile in parallel.
#pragma once
#include "kernels/cuda/linear/decode/lowbit_launch.cuh"
#include "kernels/cuda/linear/prefill/lowbit_many.h"

namespace fidelio::cuda {

struct ManyArguments {
  LowbitTarget target[kMaxTogether];
  int targets;
  int row_blocks, column_blocks, rows;
  bool add;
  const uint8_t* x;
  const float* row_factor;  // factors of the activations, as many as there is room for rows
};

// For the slots of experts, these take the place of targets and rows (lowbit_many.h).
struct RoutedManyArguments : ManyArguments, RoutedTargets {
  const RoutedTile* tiles;
  const int32_t* tile_count;
  int most_tiles;
};

void launch_many_integers(Stream stream, const ManyArguments& p, const LowbitShape& shape);
template <CodeKind kind, int bits, bool byte_scale>
void launch_many(Stream stream, const ManyArguments& p, int group);
template <CodeKind kind, int bits, bool byte_scale>
void launch_many_routed(Stream stream, const RoutedManyArguments& p, int group);

using ManyLauncher = void (*)(Stream, const ManyArguments&, int group);
using RoutedManyLauncher = void (*)(Stream, const RoutedManyArguments&, int group);

}  // namespace fidelio::cuda
