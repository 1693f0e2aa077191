// What a launch of lowbit_kernel.cuh is told. The launcher of each code is defined in its own lowbit_*.cu, so that they
// compile side by side.
#pragma once
#include "kernels/cuda/linear/layout/lowbit.h"

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
struct RoutedArguments : LowbitArguments {
  const LowbitTarget* table[2];
  float* y_of[2];
  const int32_t* experts;
  int outputs, row_blocks;  // of a slot; of each
  int slots_per_input, input_bytes;
};

template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_rows(Stream stream, const LowbitArguments& p, int row_blocks);

template <CodeKind kind, int bits, bool byte_scale>
void launch_lowbit_routed(Stream stream, const RoutedArguments& p, int row_blocks);

using LowbitLauncher = void (*)(Stream, const LowbitArguments&, int row_blocks);
using RoutedLauncher = void (*)(Stream, const RoutedArguments&, int row_blocks);

}  // namespace fidelio::cuda
