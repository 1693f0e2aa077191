// This file defines activations as the products of lowbit.h read them.
#pragma once
#include <cstdint>

struct CUstream_st;

namespace fidelio::cuda {

using Stream = CUstream_st*;

constexpr int kBlockColumns = 128;
constexpr int kMaxRows = 32;  // rows of activations in a chunk; a launch takes one or two chunks

// There is room for 8, 16 or 32 rows. A row's share of a block of 128 inputs is kept in two forms:
//   halves   [row]{128 halves}, and at the end [row]{the power of two that divides them, FP32}: for FP16 values
//   rows     [row]{planes: [chunk / 2][high, low]{64 signed bytes}, record}: x = scale (256 high + low), for integers
// A record holds sums of x / scale over 32 (4 of them), 64 (2) and 128 (1) inputs as int32, and the scale in FP32.
// The scale is a power of two; after a norm it is multiplied by the row's factor, which the integers do not include.
// It is NaN if x is not finite. On Hopper, if there is room for more than 8 rows, the second form is instead as
// lowbit_panel.cuh multiplies it:
//   rows     [row / 8][high, low][chunk]{half h: [row % 8]{4 t: 4 signed bytes}}, records: [7 .. 0]{row: 4 bytes}
// In planes, lane t's 16 bytes are the columns 8 t .. 8 t + 7 of two chunks, with each four in the order 0, 2, 1, 3
// in which codes come out of a word (lowbit_codes.cuh).
//
// A scale belongs to a block and not to a row, so that a kernel which makes 128 columns of a row can prepare them
// alone. If 128 inputs are 16-bit integers with one power of two, the average error is at most 2^-15 / sqrt(3) of
// their largest. In the worst case (one large input among zeros) FP16 has the same error; usually the error is a
// quarter of FP16's.
struct LowbitInput {
  const uint8_t* blocks = nullptr;  // input_bytes(rows, column blocks) for each chunk
  int rows = 0;                     // all rows that were prepared together
};
constexpr int kInputHalves = 256, kInputPlanes = 256, kInputRecord = 32;  // bytes of a row
constexpr int kInputRow = kInputPlanes + kInputRecord;
// How many rows there is room for.
constexpr int64_t input_rows(int64_t rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : kMaxRows; }
// These return offsets in a block with room for so many rows.
constexpr int rows_at(int rows) { return rows * kInputHalves; }
constexpr int half_scales_at(int rows) { return rows_at(rows) + rows * kInputRow; }
constexpr int64_t input_block_bytes(int64_t rows) {
  return half_scales_at(static_cast<int>(input_rows(rows))) + input_rows(rows) * 4;
}
constexpr int64_t input_bytes(int64_t rows, int64_t column_blocks) { return column_blocks * input_block_bytes(rows); }
// A Rounding describes coarse modes, in which the weights see integers of few bits. Each group of 32, 64 or 128
// columns of a row has one FP32 scale, largest / steps, and integers of magnitude `steps` at most, which are the
// nearest ones with ties to even. They are kept as the numbers that they stand for.
struct Rounding {
  int lanes = 0;               // lanes that share a group, with four columns each; 0 rounds nothing
  float part = 0;              // 1 / steps
  int fine_from = 0x7fffffff;  // groups from this column on, which begins a group, have 127 steps
  bool operator==(const Rounding&) const = default;
};
constexpr Rounding rounding_of(int group, int steps) { return {group / 4, 1 / static_cast<float>(steps)}; }
struct PreparedRows {
  uint8_t* blocks = nullptr;  // null if they are not wanted
  Rounding rounding;
};
// Turns x (rows, columns) in FP32 into blocks. More than kMaxRows rows become chunks of that many, one after the
// other.
void prepare_input(Stream stream, const float* x, int64_t rows, int64_t columns, const PreparedRows& to);

}  // namespace fidelio::cuda
