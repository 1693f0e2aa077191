// Activations as the products of lowbit.h read them.
#pragma once
#include <cstdint>

struct CUstream_st;

namespace fidelio::cuda {

using Stream = CUstream_st*;

constexpr int kBlockColumns = 128;
constexpr int kMaxRows = 32;  // of activations in a chunk; a launch takes one or two

// There is room for 8, 16 or 32 rows. A row's share of a block of 128 inputs is kept twice over:
//   halves   [row]{128 halves}, and at the end [row]{the power of two they are under, FP32}: for FP16 values
//   rows     [row]{planes: [chunk / 2][high, low]{64 signed bytes}, record}: x = scale (256 high + low), for integers
// A record: sums of x / scale over 32 (4), 64 (2) and 128 (1) inputs, int32; the scale, FP32, a power of two, after a
// norm times the row's factor, which the integers are without; NaN where x is not finite. On Hopper, where there is
// room for more than 8 rows, instead as lowbit_panel.cuh multiplies them:
//   rows     [row / 8][high, low][chunk]{half h: [row % 8]{4 t: 4 signed bytes}}, records: [7 .. 0]{row: 4 bytes}
// In planes lane t's 16 bytes are the columns 8 t .. 8 t + 7 of two chunks, each four in the order 0, 2, 1, 3
// in which codes come out of a word (lowbit_codes.cuh). A scale belongs to a block and not to a row, so that whoever
// makes 128 columns of a row can prepare them alone. 128 inputs that are integers of 16 bits under one power of two
// lose at most 2^-15 / sqrt(3) of their largest on average, which at worst (one large among zeros) is what FP16 loses
// and as a rule a quarter of it.
struct LowbitInput {
  const uint8_t* blocks = nullptr;  // of each chunk input_bytes(rows, column blocks)
  int rows = 0;                     // all that were prepared together
};
constexpr int kInputHalves = 256, kInputPlanes = 256, kInputRecord = 32;  // bytes of a row
constexpr int kInputRow = kInputPlanes + kInputRecord;
constexpr int64_t input_rows(int64_t rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : kMaxRows; }  // there is room for
// Where in a block with room for so many rows.
constexpr int rows_at(int rows) { return rows * kInputHalves; }
constexpr int half_scales_at(int rows) { return rows_at(rows) + rows * kInputRow; }
constexpr int64_t input_block_bytes(int64_t rows) {
  return half_scales_at(static_cast<int>(input_rows(rows))) + input_rows(rows) * 4;
}
constexpr int64_t input_bytes(int64_t rows, int64_t column_blocks) { return column_blocks * input_block_bytes(rows); }
// In coarse modes weights see integers of few bits: of magnitude `steps` at most under one FP32 scale for each group of
// 32, 64 or 128 columns of a row, largest / steps, the nearest integer, ties to even. They are kept as the numbers they
// stand for.
struct Rounding {
  int lanes = 0;               // that have a group, four columns each; 0: nothing is rounded
  float part = 0;              // 1 / steps
  int fine_from = 0x7fffffff;  // groups from this column on, which begins one, have 127 steps
  bool operator==(const Rounding&) const = default;
};
constexpr Rounding rounding_of(int group, int steps) { return {group / 4, 1 / static_cast<float>(steps)}; }
struct PreparedRows {
  uint8_t* blocks = nullptr;  // null: they are not wanted
  Rounding rounding;
};
// x (rows, columns) FP32 -> blocks. More than kMaxRows rows become chunks of that many, one after the other.
void prepare_input(Stream stream, const float* x, int64_t rows, int64_t columns, const PreparedRows& to);

}  // namespace fidelio::cuda
