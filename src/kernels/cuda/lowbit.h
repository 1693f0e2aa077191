// lowbit: y = W x for weights of 2..8 bits, a batch of up to kMaxRows rows of FP16 activations, FP32 sums.
//
// A weight is cut into blocks of 128 outputs by 128 inputs. A block is one contiguous run of bytes, holding codes and
// the scales that go with them, so one bulk copy brings everything a thread block needs next:
//
//   row block 0: [block k=0][block k=1] ... [block k=K/128-1]   row block 1: ...
//   block:       [4-bit plane | 2-bit plane | 1-bit plane (those the width has)] then for each group [128 scales][128
//   zeros]
//
// Within a plane the bytes are in the order in which lanes of a warp consume them as A fragments of m16n8k16 products
// (lowbit_codes.cuh draws it). Scales of a group lie [tile of 16 rows][g 0..7]{row g, row g + 8}, FP16 or one byte;
// zeros the same, one byte, already multiplied by the factor that the code's place in its half word gives it.
//
// Rounding: codes are exact in FP16 (see lowbit_codes.cuh), activations are rounded to FP16, under a power-of-two scale
// f where 128 of a row leave FP16's comfortable range; products and sums of a group are FP32; scales and zero are
// applied once per group: total += s f (acc - z sum(x)).
//
// Order: inputs are cut into kParts contiguous parts; a part's groups are added in order, then the parts as a
// balanced tree. It depends on the weight alone, so a row of a result is the same bit for bit in a batch of 1 and of
// 32, whoever works on it.
#pragma once
#include <cstdint>
#include <span>

struct CUstream_st;

namespace fidelio::cuda {

using Stream = CUstream_st*;

constexpr int kBlockRows = 128, kBlockColumns = 128, kParts = 8;
constexpr int kMaxRows = 32;  // of activations in one launch

// half: no codes but FP16 values, row-major as they are (a lane's 16 bytes of a row are what it needs of a chunk).
enum class CodeKind : uint8_t { integer, grid, half };

struct LowbitShape {
  CodeKind kind = CodeKind::integer;
  int bits = 4;             // integer 2..8, grid 2..4
  int group = 128;          // 32, 64 or 128
  bool byte_scale = false;  // integer: u8 scales; grids always have i8 scales
  int64_t out = 0, in = 0;

  constexpr int64_t row_blocks() const { return (out + kBlockRows - 1) / kBlockRows; }
  constexpr int64_t column_blocks() const { return (in + kBlockColumns - 1) / kBlockColumns; }
  constexpr int groups_per_block() const { return kBlockColumns / group; }
  constexpr int64_t code_bytes() const { return int64_t{kBlockRows} * kBlockColumns / 8 * bits; }
  constexpr int64_t scale_bytes() const {
    return kBlockRows * (kind == CodeKind::integer && !byte_scale ? 2 : 1);
  }  // of a group
  constexpr int64_t zero_bytes() const { return kind == CodeKind::integer ? kBlockRows : 0; }
  constexpr int64_t block_bytes() const { return code_bytes() + groups_per_block() * (scale_bytes() + zero_bytes()); }
  constexpr int64_t bytes() const { return row_blocks() * column_blocks() * block_bytes(); }
};

// Device addresses of a packed weight.
struct LowbitWeight {
  LowbitShape shape;
  const uint8_t* blocks = nullptr;    // shape.bytes(); half: (out, in) FP16, in a multiple of 8
  const float* row_factor = nullptr;  // (out), or null for 1: the FP32 scale of a row
  const float* bias = nullptr;        // (out), or null
  const int8_t* grid = nullptr;       // (2^bits) grids only
  float factor = 1;                   // of all values
};

// Canonical tensors of a weight in device memory (formats/linear_weight.h), to be packed.
struct CanonicalWeight {
  const uint8_t* planes[3] = {};  // plane_widths(bits)
  const void* scale = nullptr;    // (out, groups) f16, u8 or i8
  const uint8_t* zero = nullptr;  // bit-packed, or null: symmetric
  int64_t groups = 0;             // a row
  int64_t group_columns = 0;      // columns of a canonical group: shape.group, or all of them (channel-wise)
};
void pack_lowbit(Stream stream, const LowbitShape& shape, const CanonicalWeight& from, uint8_t* blocks);

// FP16 activations as the kernels read them; there is room for 8, 16 or 32 rows. Block of 128 inputs:
//   [row m]{128 halves}
//   more than 16 rows, the same halves again: [chunk of 32][product h][0, 1][row m]{8 halves, those of four lanes t:
//   the columns 8 t + 4 h + {0, 1} of the chunk, or + {2, 3}}, the order in which wgmma takes them from shared memory
//   [8 rows]{sums x 2^-24 of 32 halves (4), of 64 (2), of 128 (1); the scale: x = scale * halves}[row of the 8], FP32
// A scale belongs to a block and not to a row, so that whoever makes 128 columns of a row can prepare them alone. It is
// 1 while the largest of the 128 is in [2^-13, 2^15) or zero: there FP16 loses no more than under the best scale. A
// product of integers goes by that, and multiplies by no scale: where one is not 1 the sums are NaN, which reach the
// result, and it is made again by the sums that lie after all blocks, [block][8 rows]{the seven}[row of the 8].
// Multiplying by 1 changes no bit, so a row does not depend on which way the others went.
struct LowbitInput {
  const uint8_t* blocks = nullptr;  // input_bytes(rows, column blocks)
  int rows = 0;
  uint8_t* scratch =
      nullptr;  // joint_bytes() of the launch, zeroed once, or null; a launch leaves it ready for the next
};
// Where thread blocks of a launch of more than 16 rows leave sums for each other: counters, then the sums. Without it,
// or for more outputs than these, they are multiplied more slowly.
constexpr int kPanelCounters = 4096;  // bytes
constexpr int kMostJointRowBlocks = 512;
constexpr int kWidestPanel = 2;  // row blocks; thread blocks of the last panel leave sums for all of it
constexpr int64_t joint_bytes(int64_t row_blocks) {
  return kPanelCounters + (row_blocks + kWidestPanel - 1) / kWidestPanel * kWidestPanel * kBlockRows * kMaxRows * 4 * 4;
}
constexpr int kInputScale = 7;                                                                     // which of the eight
constexpr int kInputSumBytes = (kInputScale + 1) * 32;                                             // of 8 rows
constexpr int64_t input_rows(int64_t rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : kMaxRows; }  // there is room for
constexpr int64_t input_halves_bytes(int64_t rows) { return input_rows(rows) * (rows > 16 ? 512 : 256); }
constexpr int64_t input_block_bytes(int64_t rows) {
  return input_halves_bytes(rows) + input_rows(rows) / 8 * kInputSumBytes;
}
constexpr int64_t input_bytes(int64_t rows, int64_t column_blocks) {
  return column_blocks * (input_block_bytes(rows) + input_rows(rows) / 8 * kInputSumBytes);
}
// x (rows, columns) FP32 -> blocks. More than kMaxRows rows become chunks of that many, one after the other, each laid
// out for the rows it has.
void prepare_input(Stream stream, const float* x, int64_t rows, int64_t columns, uint8_t* blocks);

struct LowbitOutput {
  const LowbitWeight* weight = nullptr;
  float* y = nullptr;  // (rows, weight out)
};
// Bytes that will be read after this product: its last thread blocks ask for them to be brought into L2, so that memory
// does not idle while the small kernels between two products run.
struct Upcoming {
  const void* data = nullptr;
  uint32_t bytes = 0;  // a multiple of 16
};
constexpr int kMaxTogether = 3;
// y = W x, or y += W x. At most kMaxTogether weights of equal shape but for `out` go in one launch.
void lowbit_linear(Stream stream, const LowbitInput& x, std::span<const LowbitOutput> outputs, bool add,
                   std::span<const Upcoming> upcoming);

// halves (out, in) = values / factor, of codes; `in` is a multiple of 8.
void dequantise(Stream stream, const LowbitWeight& w, float factor, uint16_t* halves);

}  // namespace fidelio::cuda
