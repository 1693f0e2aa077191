// lowbit: y = W x for weights of 2..8 bits, a batch of rows of 16-bit activations, FP32 sums.
//
// A weight is cut into blocks of 128 outputs by 128 inputs. A block is one contiguous run of bytes, holding codes and
// the scales that go with them, so one bulk copy brings everything a thread block needs next:
//
//   row block 0: [block k=0][block k=1] ... [block k=K/128-1]   row block 1: ...
//   block:       [4-bit plane | 2-bit plane | 1-bit plane (those the width has)] then
//                for each group [128 scales][128 zeros]
//
// Within a plane the bytes are in the order in which lanes of a warp consume them as A fragments of m16n8k16 products
// (lowbit_codes.cuh draws it). Scales of a group lie [tile of 16 rows][g 0..7]{row g, row g + 8}, FP16 or one byte;
// zeros the same, one byte, already multiplied by the factor that the code's place in its half word gives it.
//
// Integers and grids are multiplied as integers: activations are two planes of signed bytes under one f a block, so the
// sum over a group of (code - zero) x, or of entry x, is exact, an int32, and a group adds s f times that to an FP32
// total. FP16 values are multiplied by activations in FP16, under a power of two f where 128 of a row leave FP16's
// comfortable range; products and sums of a group are FP32: total += f acc.
//
// Order: inputs are cut into kParts contiguous parts; a part's groups are added in order, then the parts as a
// balanced tree. It depends on the weight alone, so a row of a result is the same bit for bit in a batch of 1 and of
// 64, whoever works on it.
#pragma once
#include <span>

#include "kernels/cuda/linear/layout/prepared.h"

namespace fidelio::cuda {

constexpr int kBlockRows = 128, kParts = 8;

// half: no codes but FP16 values, row-major as they are (a lane's 16 bytes of a row are what it needs of a chunk).
// high: the four high bits of integers of 5 to 8, which are their first plane; no weight's own kind but a way of reading
// one (LowbitShape::below). curve: a grid of 6 bits that a polynomial gives (formats/grid_curve.h), laid out as integers.
enum class CodeKind : uint8_t { integer, grid, half, high, curve };
constexpr bool has_entries(CodeKind kind) { return kind == CodeKind::grid || kind == CodeKind::curve; }

struct LowbitShape {
  CodeKind kind = CodeKind::integer;
  int bits = 4;             // integer 2..8, grid 2..6, curve 6
  int group = 128;          // 32, 64 or 128
  bool byte_scale = false;  // integer: u8 scales; grids always have i8 scales
  int64_t out = 0, in = 0;
  // Of a view: low bits that are not read, bits - 4. A code then stands for the middle of what those could be. Blocks are
  // the whole weight's: its codes' first plane, 8 KB, and its scales are what is read of one.
  int below = 0;

  constexpr int64_t row_blocks() const { return (out + kBlockRows - 1) / kBlockRows; }
  constexpr int64_t column_blocks() const { return (in + kBlockColumns - 1) / kBlockColumns; }
  constexpr int groups_per_block() const { return kBlockColumns / group; }
  constexpr int64_t code_bytes() const { return int64_t{kBlockRows} * kBlockColumns / 8 * bits; }
  constexpr int64_t scale_bytes() const {
    return kBlockRows * (kind == CodeKind::integer && !byte_scale ? 2 : 1);
  }  // of a group
  constexpr int64_t zero_bytes() const { return kind == CodeKind::integer ? kBlockRows : 0; }
  constexpr int64_t unread_bytes() const {
    return row_blocks() * column_blocks() * kBlockRows * kBlockColumns / 8 * below;
  }
  // Twice the middle, as zeros are stored: times 2^(8 - bits).
  constexpr int twice_middle() const { return below == 0 ? 0 : ((1 << below) - 1) << (8 - bits); }
  constexpr int64_t block_bytes() const { return code_bytes() + groups_per_block() * (scale_bytes() + zero_bytes()); }
  constexpr int64_t bytes() const { return row_blocks() * column_blocks() * block_bytes(); }
};

// Device addresses of a packed weight.
struct LowbitWeight {
  LowbitShape shape;
  const uint8_t* blocks = nullptr;    // shape.bytes(); half: (out, in) FP16, in a multiple of 8
  const float* row_factor = nullptr;  // (out), or null for 1: the FP32 scale of a row
  const float* bias = nullptr;        // (out), or null
  const int8_t* grid = nullptr;       // (2^bits) grids only; then a curve's a1, a3, a5 and 1664 + a0, FP16
  float factor = 1;                   // of all values
  bool symmetric = false;             // integers: every zero is the middle of the codes
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

struct LowbitOutput {
  const LowbitWeight* weight = nullptr;
  float* y = nullptr;  // (rows, weight out)
};
// Bytes that will be read after this product: its last thread blocks ask for them to be brought into L2, so that memory
// does not idle while the small kernels between two products run.
struct Upcoming {
  const void* data = nullptr;
  uint32_t bytes = 0;  // a multiple of 16
  // Of a view: pieces of so many bytes are asked for, so many apart; 0: all of it.
  uint32_t piece = 0, stride = 0;
};
// What a product of few rows makes of its result for the next one, which then need not wait for a kernel between the
// two: blocks of integers (no halves). norm: of y times `norm`, without the rows' factors, for which the squares of each
// block of y are left in `squares`. gate: of silu(gate) up, and neither is stored; the outputs are gate
// and up. Where joins(): Hopper, integers, whole blocks of outputs.
constexpr int kMostJoined = 4;  // rows
// Whether weights of so many bits make the next rows; any takes them. Of 2 and 3 bits several rows took 4 to 7% longer.
constexpr bool joins_rows(int bits, int64_t rows) { return rows == 1 || (rows <= kMostJoined && bits >= 4); }
struct LowbitJoin {
  enum class Kind : uint8_t { none, norm, gate };
  Kind kind = Kind::none;
  uint8_t* blocks = nullptr;
  const float* norm = nullptr;  // (out)
  float* squares = nullptr;     // (rows, out / 128)
  Rounding rounding;
};
bool joins(std::span<const LowbitOutput> outputs, LowbitJoin::Kind kind, int rows);
// Rows whose blocks were made so: a row's factor is 1 / sqrt(mean square + eps).
struct LowbitNorm {
  const float* squares = nullptr;  // (rows, blocks of 128 columns); null: there are no factors
  float eps = 0;
};

constexpr int kMaxTogether = 3;
struct LowbitProduct {
  LowbitInput x;
  LowbitNorm norm;  // kMostJoined rows of integers on Hopper
  LowbitOutput outputs[kMaxTogether];
  int count = 0;
  bool add = false;
  LowbitJoin join;
};
// y = W x, or y += W x, of at most kMaxTogether weights of equal shape but for `out`: a launch for every chunk of rows (on
// Hopper for two, but of groups of 32 and of FP16 values). The last one asks for what is upcoming.
void lowbit_linear(Stream stream, const LowbitProduct& product, std::span<const Upcoming> upcoming);
inline void lowbit_linear(Stream stream, const LowbitInput& x, std::span<const LowbitOutput> outputs, bool add,
                          std::span<const Upcoming> upcoming) {
  LowbitProduct product{x, {}, {}, static_cast<int>(outputs.size()), add, {}};
  for (int i = 0; i < product.count; ++i) product.outputs[i] = outputs[static_cast<size_t>(i)];
  lowbit_linear(stream, product, upcoming);
}

// halves (out, in) = values / factor, of codes; `in` is a multiple of 8.
void dequantise(Stream stream, const LowbitWeight& w, float factor, uint16_t* halves);

}  // namespace fidelio::cuda
