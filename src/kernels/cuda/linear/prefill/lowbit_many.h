// Products of low-bit weights with many rows (prefill), on Hopper: lowbit_many.cuh says how. A row's bits depend
// neither on how many rows there are nor on what is multiplied beside it.
//
// Activations are FP16 times a power of two of the row (row_factor_of in prepare.cuh), in the order in which products
// take them from shared memory:
//
//   [64 columns][row, padded to kManyRows]{128 bytes}    16-byte piece i of row m at i ^ (m % 8); piece 4 c + 2 h + p
//   holds the columns 32 c + 8 t + 4 h + 2 p + {0, 1} of t = 0..3: pair p of product (c, h) (lowbit_codes.cuh)
//
// so that what a thread block needs next, 64 columns of its rows, is one run of bytes. In coarse modes, for weights whose
// groups are 128 columns as their rows' are then, they are integers (lowbit_many_integers.cuh), and their scales behind:
//
//   [128 columns][row, padded]{128 bytes}    16-byte piece i of row m at i ^ (m % 8); piece 2 c + h holds the columns 32 c
//   + 8 t + 4 h + {0, 2, 1, 3} of t = 0..3
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
  // Where rows lie apart: which of x each is (null: its own), and its place among `padded` (null: in their order).
  const int32_t* of = nullptr;
  const int32_t* places = nullptr;
  int64_t padded = 0;
  Rounding rounding = {};  // in coarse modes what weights see of rows is rounded to integers before (prepared.h)
  bool integers = false;   // kept as such
};

// x (rows, columns) FP32, rounded; x / sqrt(mean(x^2) + eps) * weight, rounded; silu(gate) * up, rounded.
void prepare_many(Stream stream, const float* x, int64_t rows, int64_t columns, const ManyRows& to);
void rms_norm_many(Stream stream, const float* x, const float* weight, float eps, int64_t rows, int64_t columns,
                   const ManyRows& to);
void swiglu_many(Stream stream, const float* gate, const float* up, int64_t rows, int64_t columns, const ManyRows& to);

// Whether this device has the kernel and the weight's values are in FP16's range: `factor` is what brings its largest
// below 2^15.
bool takes_many(const LowbitWeight& w, float factor);
// Whether it multiplies rows so rounded as integers.
bool takes_integers(const LowbitWeight& w, const Rounding& rounding);
// y = W x, or y += W x. At most kMaxTogether weights of equal shape but for `out` go in one launch.
void lowbit_many(Stream stream, const ManyRows& x, int64_t rows, std::span<const LowbitOutput> outputs, bool add);

// The same for a mixture's slots (kernels/routes.h), grouped by expert, all groups in one launch. Tile i has the rows from
// kRoutedRows * i on of x.padded = kRoutedRows * tiles.most; an expert has as many tiles as its slots fill, the last with
// rows for nobody. Few, for many experts have few slots: of 512 rows, 8 of 128 experts each, 32.
constexpr int kRoutedRows = 64;
struct RoutedTiles {
  const RoutedTile* tiles = nullptr;  // on the device, as is how many there are
  const int32_t* count = nullptr;
  int64_t most = 0;
};
void lowbit_many_routed(Stream stream, const ManyRows& x, const RoutedTiles& tiles, const RoutedOutputs& outputs);

}  // namespace fidelio::cuda
