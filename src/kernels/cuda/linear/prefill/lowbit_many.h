// This file multiplies low-bit weights by many rows (prefill) on Hopper; lowbit_many.cuh has the kernel. A row's bits
// depend neither on the number of rows nor on what else is multiplied.
//
// Activations are FP16 times a power of two for each row (row_factor_of in prepare.cuh), in the order in which
// products take them from shared memory:
//
//   [64 columns][row, padded to kManyRows]{128 bytes}    16-byte piece i of row m at i ^ (m % 8); piece 4 c + 2 h + p
//   holds the columns 32 c + 8 t + 4 h + 2 p + {0, 1} of t = 0..3: pair p of product (c, h) (lowbit_codes.cuh)
//
// So what a thread block needs next, 64 columns of its rows, is one run of bytes. In coarse modes, for weights with
// groups of 128 columns (which their rows then have too), they are integers (lowbit_many_integers.cuh), followed by
// their scales:
//
//   [128 columns][row, padded]{128 bytes}    16-byte piece i of row m at i ^ (m % 8); piece 2 c + h holds the columns
//   32 c + 8 t + 4 h + {0, 2, 1, 3} of t = 0..3
//   [128 columns][row, padded]{scale, FP32}
#pragma once
#include "kernels/cuda/linear/decode/lowbit_routed.h"

namespace fidelio::cuda {

constexpr int kManyRows = 256;
constexpr int64_t many_rows(int64_t rows) { return (rows + kManyRows - 1) / kManyRows * kManyRows; }
constexpr int64_t many_bytes(int64_t rows, int64_t columns) {
  return many_rows(rows) * ((columns + kBlockColumns - 1) / kBlockColumns) * kBlockColumns * 2;
}

struct ManyRows {
  uint8_t* halves = nullptr;  // many_bytes(rows, columns)
  float* factor = nullptr;    // (many_rows(rows))
  // If rows are gathered and spread: which row of x each is (null: the same), and its place among `padded` rows
  // (null: in order).
  const int32_t* of = nullptr;
  const int32_t* places = nullptr;
  int64_t padded = 0;
  // In coarse modes the rows are first rounded to integers, as the weights see them (prepared.h).
  Rounding rounding = {};
  bool integers = false;  // keeps them as integers
};

// These write x (rows, columns) in FP32, or x / sqrt(mean(x^2) + eps) * weight, or silu(gate) * up, rounded.
void prepare_many(Stream stream, const float* x, int64_t rows, int64_t columns, const ManyRows& to);
void rms_norm_many(Stream stream, const float* x, const float* weight, float eps, int64_t rows, int64_t columns,
                   const ManyRows& to);
void swiglu_many(Stream stream, const float* gate, const float* up, int64_t rows, int64_t columns, const ManyRows& to);

// Returns true if this device has the kernel and the weight's values are in FP16's range. `factor` is what brings its
// largest value below 2^15.
bool takes_many(const LowbitWeight& w, float factor);
// Returns true if it multiplies rows with this rounding as integers.
bool takes_integers(const LowbitWeight& w, const Rounding& rounding);
// Computes y = W x, or y += W x. At most kMaxTogether weights, whose shapes differ only in `out`, go in one launch.
void lowbit_many(Stream stream, const ManyRows& x, int64_t rows, std::span<const LowbitOutput> outputs, bool add);

// Does the same for the slots of a mixture of experts (step/routes.h), grouped by expert, with all groups in one
// launch. Tile i has the rows from kRoutedRows * i on of x.padded = kRoutedRows * tiles.most. An expert has as many
// tiles as its slots fill; the last one may have rows that are not used. Tiles have few rows because many experts
// have few slots: with 512 rows and 8 of 128 experts for each, 32.
constexpr int kRoutedRows = 64;
struct RoutedTiles {
  const RoutedTile* tiles = nullptr;  // on the device, as is their number
  const int32_t* count = nullptr;
  int64_t most = 0;
};
void lowbit_many_routed(Stream stream, const ManyRows& x, const RoutedTiles& tiles, const RoutedOutputs& outputs);

}  // namespace fidelio::cuda
