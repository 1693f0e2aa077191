// This file has low-bit products, y = W x, for weights of 2..8 bits and a batch of rows of 16-bit activations, with
// FP32 sums.
//
// A weight is cut into blocks of 128 outputs by 128 inputs. A block is one contiguous run of bytes, with codes and
// the scales that belong to them, so that one bulk copy brings everything a thread block needs next:
//
//   row block 0: [block k=0][block k=1] ... [block k=K/128-1]   row block 1: ...
//   block:       [4-bit plane | 2-bit plane | 1-bit plane (those the width has)] then
//                for each group [128 scales][128 zeros]
//
// Within a plane the bytes are in the order in which the lanes of a warp consume them as A fragments of m16n8k16
// products (lowbit_codes.cuh has a drawing). The scales of a group lie as [tile of 16 rows][g 0..7]{row g, row g +
// 8}, in FP16 or one byte. Zeros lie in the same way, one byte each, and are already multiplied by the factor that
// the code's place in its half word gives it.
//
// Integers and grids are multiplied as integers. Activations are two planes of signed bytes with one scale f for a
// block. The sum over a group of (code - zero) x, or of entry x, is therefore exact, an int32, and a group adds s f
// times that sum to an FP32 total. FP16 values are multiplied by activations in FP16, which have a power of two f if
// 128 of a row leave FP16's comfortable range. Products and sums of a group are then FP32: total += f acc.
//
// The inputs are cut into kParts contiguous parts. The groups of a part are added in order, and then the parts as a
// balanced tree. This order depends on the weight alone, so a row's result is the same, bit for bit, in a batch of 1
// and of 64, whichever kernel computes it.
#pragma once
#include <span>

#include "kernels/cuda/linear/layout/prepared.h"

namespace fidelio::cuda {

constexpr int kBlockRows = 128, kParts = 8;

// A CodeKind says how the codes of a weight are stored and read.
//   integer, grid   integers with zero points, and grids of entries
//   half            FP16 values instead of codes, row-major as they are (a lane's 16 bytes of a row are what it needs
//                   of a chunk)
//   high            the four high bits of integers of 5 to 8, which are their first plane. No weight has this kind; it
//                   is a way to read one (LowbitShape::below)
//   curve           a grid of 6 bits that is a polynomial (formats/grid_curve.h), laid out as integers
enum class CodeKind : uint8_t { integer, grid, half, high, curve };
constexpr bool has_entries(CodeKind kind) { return kind == CodeKind::grid || kind == CodeKind::curve; }

struct LowbitShape {
  CodeKind kind = CodeKind::integer;
  int bits = 4;             // integer 2..8, grid 2..6, curve 6
  int group = 128;          // 32, 64 or 128
  bool byte_scale = false;  // for integers: u8 scales; grids always have i8 scales
  int64_t out = 0, in = 0;
  // For high bits only: the number of low bits that are not read, bits - 4. A code then stands for the middle of what
  // those could be. The blocks are those of the whole weight; of each, the first plane of codes (8 KB) and the scales
  // are read.
  int below = 0;

  constexpr int64_t row_blocks() const { return (out + kBlockRows - 1) / kBlockRows; }
  constexpr int64_t column_blocks() const { return (in + kBlockColumns - 1) / kBlockColumns; }
  constexpr int groups_per_block() const { return kBlockColumns / group; }
  constexpr int64_t code_bytes() const { return int64_t{kBlockRows} * kBlockColumns / 8 * bits; }
  // This is the size of the scales of a group.
  constexpr int64_t scale_bytes() const { return kBlockRows * (kind == CodeKind::integer && !byte_scale ? 2 : 1); }
  constexpr int64_t zero_bytes() const { return kind == CodeKind::integer ? kBlockRows : 0; }
  constexpr int64_t unread_bytes() const {
    return row_blocks() * column_blocks() * kBlockRows * kBlockColumns / 8 * below;
  }
  // Returns twice the middle of the bits that are not read, in the unit in which zeros are stored, which is 2^(8 -
  // bits).
  constexpr int twice_middle() const { return below == 0 ? 0 : ((1 << below) - 1) << (8 - bits); }
  constexpr int64_t block_bytes() const { return code_bytes() + groups_per_block() * (scale_bytes() + zero_bytes()); }
  constexpr int64_t bytes() const { return row_blocks() * column_blocks() * block_bytes(); }
};

// A LowbitWeight holds the device addresses of a packed weight.
struct LowbitWeight {
  LowbitShape shape;
  const uint8_t* blocks = nullptr;    // shape.bytes(); for kind half: (out, in) in FP16, where in is a multiple of 8
  const float* row_factor = nullptr;  // (out): the FP32 scale of each row, or null for 1
  const float* bias = nullptr;        // (out), or null
  const int8_t* grid = nullptr;       // for grids: 2^bits entries; then for a curve a1, a3, a5 and 1664 + a0 in FP16
  float factor = 1;                   // factor of all values
  bool symmetric = false;             // for integers: every zero is the middle of the codes
};

// A CanonicalWeight names the canonical tensors of a weight in device memory (formats/linear_weight.h), which are to
// be packed.
struct CanonicalWeight {
  const uint8_t* planes[3] = {};  // as plane_widths(bits) says
  const void* scale = nullptr;    // (out, groups) f16, u8 or i8
  const uint8_t* zero = nullptr;  // packed bits, or null if symmetric
  int64_t groups = 0;             // groups of a row
  int64_t group_columns = 0;      // columns of a canonical group: shape.group, or all columns (one scale a row)
};
void pack_lowbit(Stream stream, const LowbitShape& shape, const CanonicalWeight& from, uint8_t* blocks);

struct LowbitOutput {
  const LowbitWeight* weight = nullptr;
  float* y = nullptr;  // (rows, weight out)
};
// Upcoming names bytes that will be read after this product. Its last thread blocks ask for them to be brought into
// L2, so that memory does not idle while small kernels run between two products.
struct Upcoming {
  const void* data = nullptr;
  uint32_t bytes = 0;  // a multiple of 16
  // For high bits only: pieces of `piece` bytes are asked for, `stride` bytes apart. 0 asks for all bytes.
  uint32_t piece = 0, stride = 0;
};
// A LowbitJoin says what a product of few rows makes of its result for the next product, which then need not wait for
// a kernel between the two. It makes blocks of integers (no halves).
//   norm   makes the blocks of y times `norm`, without the rows' factors; for these it leaves the squares of each
//          block of y in `squares`
//   gate   makes the blocks of silu(gate) up and stores neither; the outputs are gate and up
// It requires joins(): Hopper, integers, and whole blocks of outputs.
constexpr int kMostJoined = 4;  // the most rows
// Returns true if weights of so many bits can make the next rows; weights of any width can take them. With 2 and 3
// bits it took 4 to 7% longer for several rows.
constexpr bool joins_rows(int bits, int64_t rows) { return rows == 1 || (rows <= kMostJoined && bits >= 4); }
struct LowbitJoin {
  enum class Kind : uint8_t { none, norm, gate };
  Kind kind = Kind::none;
  uint8_t* blocks = nullptr;
  const float* norm = nullptr;  // (out)
  float* squares = nullptr;     // (rows, out / 128)
  Rounding rounding;
};
// Returns true if a product with these outputs can do such a join.
bool joins(std::span<const LowbitOutput> outputs, LowbitJoin::Kind kind, int rows);
// A LowbitNorm describes rows whose blocks were made by a join. A row's factor is 1 / sqrt(mean square + eps).
struct LowbitNorm {
  const float* squares = nullptr;  // (rows, blocks of 128 columns); null means that there are no factors
  float eps = 0;
};

constexpr int kMaxTogether = 3;
struct LowbitProduct {
  LowbitInput x;
  LowbitNorm norm;  // for at most kMostJoined rows of integers on Hopper
  LowbitOutput outputs[kMaxTogether];
  int count = 0;
  bool add = false;
  LowbitJoin join;
};
// Computes y = W x, or y += W x, for at most kMaxTogether weights whose shapes differ only in `out`. There is one
// launch for every chunk of rows (on Hopper for two chunks, except with groups of 32 and FP16 values). The last
// launch asks for what is upcoming.
void lowbit_linear(Stream stream, const LowbitProduct& product, std::span<const Upcoming> upcoming);
inline void lowbit_linear(Stream stream, const LowbitInput& x, std::span<const LowbitOutput> outputs, bool add,
                          std::span<const Upcoming> upcoming) {
  LowbitProduct product{x, {}, {}, static_cast<int>(outputs.size()), add, {}};
  for (int i = 0; i < product.count; ++i) product.outputs[i] = outputs[static_cast<size_t>(i)];
  lowbit_linear(stream, product, upcoming);
}

// Computes halves (out, in) = values / factor of a weight of codes. `in` must be a multiple of 8.
void dequantise(Stream stream, const LowbitWeight& w, float factor, uint16_t* halves);

}  // namespace fidelio::cuda
