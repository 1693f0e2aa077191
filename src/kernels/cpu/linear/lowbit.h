// This file describes how a packed low-bit weight and prepared activations lie in memory, and what one instruction
// set supplies to multiply them. It has plain data only: the files compiled for a wider instruction set include
// nothing else of the project.
//
// A packed weight has the stored bytes, one block after the other. A block is 16 output rows; the last one is padded
// with zeros.
//
//   tables:  a grid has 2^bits codebook entries, each + 128 as a byte, padded to 64 bytes; those of its views of b bits
//            follow from byte 64 + 2^b on. FP4 and MXFP4 have one table of 64 bytes, as the grid 2 x E2M1. Other
//            formats have none.
//   block:   row scales   16 FP32           (8-bit scales only; MXFP4's are ones)
//            scales       groups x 16       as stored: FP16, u8, i8, E4M3 or E8M0
//            zeros        groups x 16 b-bit strings of 2b bytes (asymmetric integers), row r at bits [r b, r b + b);
//                         FP4 with offsets: groups x 16 E4M3
//            padding to 64 bytes
//            plane 0      all columns, then plane 1, then plane 2 (high bits first, formats/linear_weight.h). A reader
//                         of the high planes alone reads one contiguous run of each block. For a view that ends inside
//                         a plane see lowbit_split.h.
//
// A plane is cut into spans of 32 columns = 8 quads of 4. One 64-byte vector holds 16 rows x 4 columns (byte 4 r + j
// is row r, column j of the quad) in several bit fields, one quad each:
//
//   width 4:  4 vectors a span; vector v: quad 2v in bits 0-3, quad 2v+1 in bits 4-7
//   width 2:  2 vectors a span; vector v: quads 4v.. in bits 0-1, 4-5, 2-3, 6-7
//   width 1:  1 vector  a span; quads 0.. in bits 0, 4, 1, 5, 2, 6, 3, 7
//
// A pair of quads (2i, 2i+1) thus always sits 4 bits apart, and planes are combined a pair at a time. Rows are
// interleaved so that a 4-byte broadcast of activations meets 16 rows in one vpdpbusd: its INT32 lanes are output
// rows, and no horizontal sums are needed.
//
// MXFP4 is a grid of 4 bits to the kernels, with scales of half the power of two. FP4's groups are half a span: its
// kernels sum each half of a span separately, with w = scale / 2 * (2 x E2M1) + offset, and there is one activation
// scale a span. A view of the high planes of an integer weight reads the same packed bytes as the whole weight. A code
// q that lacks its low d bits stands for the middle of what they could be, (q 2^d + (2^d - 1) / 2 - zero) scale; in
// integers that is (q 2^(d+1) - (2 zero - (2^d - 1))) times half the scale. These integers are twice those of the whole
// weight, and still fit: 511 * 16319 * 128 < 2^31. A view of a grid is the grid of its own entries over the first
// planes.
//
// Prepared activations are x = scale (128 hi + lo) or scale * hi with |128 hi + lo| <= 16319, |hi| <= 127 (31 and 7
// for A6 and A4) and -64 <= lo <= 63:
//
//   planes      (spans, M, 64 or 32): 32 bytes of hi, followed (A16) by 32 bytes of lo. Rows of a batch are
//               neighbours, so a loop over M with 64 columns of weights held in registers streams through memory.
//   words       (spans, M, 64), in place of two planes if the instruction set has no product of bytes (AVX2): 8
//               quads of four INT16, columns in the order 0 2 1 3
//   scale, sum  (groups, M), and where groups are spans also the sum of the first half of each, (groups, M)
#pragma once
#include <cstdint>

namespace fidelio::cpu::lowbit {

constexpr int kBlock = 16;  // output rows
constexpr int kSpan = 32;   // columns of a span
constexpr int kHalf = kSpan / 2;
constexpr int kMaxRows = 128;  // rows of activations that a pass over the weights serves; their partial sums stay in L1
constexpr float kSteps16 = 127 * 128 + 63;  // the largest integer of A16

// A coding is a kind of code that a kernel knows: integers of 2..8 bits, grids of 2..6 bits, FP4, and views of the
// 2..7 high bits of an integer.
constexpr int kCodings = 19, kFp4 = 12, kFirstView = 13;
constexpr bool is_view(int coding) { return coding >= kFirstView; }
constexpr bool is_grid(int coding) { return coding >= 7 && !is_view(coding); }
constexpr int bits_of(int coding) {  // bits of a code as it is read
  if (is_view(coding)) return coding - kFirstView + 2;
  return coding == kFp4 ? 4 : is_grid(coding) ? coding - 5 : coding + 2;
}
constexpr bool has_plane4(int bits) { return bits >= 4; }
constexpr bool has_plane2(int bits) { return bits == 2 || bits == 3 || bits == 6 || bits == 7; }
constexpr bool has_plane1(int bits) { return bits == 3 || bits == 5 || bits == 7; }

// Returns the bit of a byte at which quad q of a vector of this plane width begins.
constexpr int field_shift(int width, int q) { return 4 * (q % 2) + width * (q / 2); }

// Calls of.operator()<coding>() for every coding, to fill a table.
template <int kCoding = 0, typename Of>
constexpr void for_each_coding(const Of& of) {
  if constexpr (kCoding < kCodings) {
    of.template operator()<kCoding>();
    for_each_coding<kCoding + 1>(of);
  }
}

enum class Scale : uint8_t { f16, u8, i8, e4m3, e8m0 };

struct Layout {
  int coding;
  int code_bits;  // bits of whole codes and of zero points: more than bits_of(coding) for a view
  Scale scale;
  bool has_zero;  // if false, zero is 2^(b-1), or 128 for a grid's offset codebook
  int64_t out, in;
  int64_t blocks, spans;
  int64_t groups, group_spans;  // weight scales of a row, and spans that share one
  // An activation scale is shared by a part of a weight group, of at most 128 columns.
  int64_t activation_groups, activation_group_spans;
  int64_t front;                                                    // bytes before block 0
  int64_t table;                                                    // a grid's entries begin at this byte of the front
  int64_t scale_offset, zero_offset, plane_offset[3], block_bytes;  // offsets within a block
  int64_t bytes() const { return front + blocks * block_bytes; }
};

// A Job is one call: blocks [first, last) for all rows.
struct Job {
  Layout layout;
  const uint8_t* packed;
  const float* bias;     // or null
  int64_t rows;          // M
  const int8_t* planes;  // integer forms
  const float* scale;
  const int32_t* sum;
  const int32_t* half;
  const float* values;  // f32: (M, in)
  int64_t first, last;
  float* y;  // (M, out), rows y_stride floats apart
  int64_t y_stride;
  bool add;
};

// A PrepareJob turns rows [first, last) of x (rows, columns) into the layout above; group_spans spans share a scale.
struct PrepareJob {
  const float* x;
  int64_t rows, columns, group_spans;
  float steps;         // the largest integer
  int64_t fine_spans;  // spans from this one on have integers up to 127 whatever `steps` is (Atom's 8-bit columns)
  int64_t first, last;
  int8_t* planes;
  float* scale;
  int32_t* sum;
  int32_t* half;  // or null
};

// A MergePlane reassembles a split plane. A plane of 4 bits may be split into 2|1|1 or 1|1|2, one of 2 bits into 1|1
// (lowbit_split.h).
constexpr int kSplits = 3;
using MergePlane = void (*)(const uint8_t* parts, int64_t spans, uint8_t* whole);

struct IntegerProducts {
  void (*a16[kCodings])(const Job&);
  void (*a8[kCodings])(const Job&);
};
struct Kernels {
  IntegerProducts integer;
  void (*f32[kCodings])(const Job&);
  void (*prepare16)(const PrepareJob&);
  void (*prepare8)(const PrepareJob&);
  void (*prepare_words)(const PrepareJob&);  // null if no kernel of the set multiplies words
  MergePlane merge[kSplits];
};
extern const Kernels kPortable, kAvx2, kAvx512;
extern const IntegerProducts kAmx;        // the other kernels are kAvx512's
extern const IntegerProducts kAvx2Words;  // has a16 of words, without FP4; the other kernels are kAvx2's

}  // namespace fidelio::cpu::lowbit
