// This file defines LinearWeight, the weight of a linear layer in its canonical form, as files and algorithms see it.
// Its meaning is y = decode(main) x + bias. A backend's packed Linear (kernels/backend.h) is the other form; pack()
// converts to it, and nothing converts back.
//
// Codes are stored as bit planes, the high bits first, so a reader of the first planes alone has a valid narrower
// weight (docs/formats.md draws it):
//     bits    2    3      4    5      6      7        8
//     planes  [2]  [2,1]  [4]  [4,1]  [4,2]  [4,2,1]  [4,4]
// A plane of width w is u8 (rows, ceil(columns w / 8)). Within a row the code of column c occupies bits [c w, c w + w),
// counted from the least significant bit of the first byte. As w divides 8, a code never straddles bytes.
#pragma once
#include <array>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/tensor.h"
#include "formats/format_spec.h"
#include "formats/vector_code.h"

namespace fidelio {

std::span<const int> plane_widths(int bits);
// Tells whether codes of `bits` bits can be cut to their `high` high bits between two planes.
bool is_view_width(int bits, int high);

struct Codes {
  int bits = 0;
  int64_t rows = 0, columns = 0;
  // There is one for each of plane_widths(bits), u8 (rows, ceil(columns * width / 8)).
  std::vector<OwnedTensor> planes;

  static Codes allocate(int bits, int64_t rows, int64_t columns);
  uint8_t get(int64_t row, int64_t column) const;
  void set(int64_t row, int64_t column, uint8_t code);
  void get_row(int64_t row, std::span<uint8_t> codes) const;  // `codes` has `columns` places.
  void set_row(int64_t row, std::span<const uint8_t> codes);
};

struct Dense {
  OwnedTensor w;  // It is f32, f16 or bf16 (out, in).
};

// A weight is w = scale (q - zero). If the format is symmetric, zero = 2^(b-1) and is not stored. If only the high
// planes are read, w = scale (2^d q + (2^d - 1) / 2 - zero) with d = spec.below: that is the middle of the values that
// the missing bits could give. b and zero are then those of the whole weight.
struct IntGroup {
  Codes codes;            // (out, in)
  OwnedTensor scale;      // It is f16 (out, groups), or u8 (out, groups) times row_scale.
  OwnedTensor row_scale;  // It is f32 (out) with u8 scales, and empty otherwise.
  // This is u8 (out, ceil(groups * b / 8)): the b-bit zero points are packed as a plane of b bits (see get_zero).
  OwnedTensor zero;
};

// This is a vector code whose vectors have `dim` entries; with dim 1 it is a grid. w = row_scale * scale * codebook[q].
struct VectorCode {
  int dim = 1;
  Codes codes;           // (out, in / dim)
  OwnedTensor codebook;  // It is i8 (2^bits, dim).
  OwnedTensor scale;  // It is i8 (out, groups) and signed: the largest element of a group maps to the end of the grid.
  OwnedTensor row_scale;  // It is f32 (out).
};

// This holds fp4, where w = row_scale * (scale * e2m1(q) + offset) in blocks of 16, mxfp4, where w = 2^(scale - 127)
// e2m1(q) in blocks of 32, and fp8, where w = row_scale * e4m3(q).
struct FpBlock {
  Codes codes;         // (out, in), with 4 or 8 bits.
  OwnedTensor scale;   // For fp4 it is f8_e4m3 (out, blocks), for mxfp4 u8 (out, blocks): E8M0, where 255 is NaN.
  OwnedTensor offset;  // For fp4 with an offset it is f8_e4m3 (out, blocks).
  // This is f32 (out): the second-level scale of fp4, to which its E4M3 scales are relative, or the scale of fp8. mxfp4
  // has none.
  OwnedTensor row_scale;
};

// This holds ggml's super-blocks of 256 columns, whose groups have integer scales s and minima t. In FP32, in this
// order of operations, w = (d s) q - (m t) with minima, (d s) (q - 2^(b-1)) without, and (d s) kFixedTable[q] for lut4.
struct SuperBlock {
  Codes codes;              // (out, in)
  OwnedTensor scale;        // It is i8 (out, groups) without minima and u8 with them. Of 2 bits, s + 16 t is one byte.
  OwnedTensor minimum;      // It is u8 (out, groups) where there are minima, but for codes of 2 bits.
  OwnedTensor super_scale;  // It is f16 (out, supers): d.
  OwnedTensor super_minimum;  // It is f16 (out, supers) where there are minima: m.

  // These return s and t of a group, which is counted through all rows.
  int scale_of(int64_t at) const;
  int minimum_of(int64_t at) const;
};
inline constexpr std::array<int8_t, 16> kFixedTable = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                       1,    13,   25,  38,  53,  69,  89,  113};

struct LinearWeight {
  int64_t out = 0, in = 0;
  FormatSpec spec;
  std::variant<Dense, IntGroup, VectorCode, FpBlock, SignedVectors, SuperBlock> main;
  OwnedTensor bias;  // It is f32 (out), or empty.

  int64_t stored_bytes() const;  // This always equals fidelio::stored_bytes(spec, out, in) plus the bytes of the bias.
};

// These read and set the b-bit zero point of one group. It starts at bit g*b of the bit string of the row, least
// significant bit first, and may straddle bytes.
int get_zero(const IntGroup& w, int64_t row, int64_t g);
void set_zero(IntGroup& w, int64_t row, int64_t g, int zero);

// Returns the narrower weight that the high `bits` bits (2 or more) of integers, or of the codes of a grid, make by
// themselves, decoded as above. The entries of a grid are those of cut_codebook(). Where planes end at the cut
// (is_view_width) the result has the same tensors, otherwise copies of the codes. It is a way of reading a file and not
// a stored format.
LinearWeight high_planes(const LinearWeight& w, int bits);
// Fills `cut` (2^bits) with the rounded means of the 2^d neighbouring entries that a code of the high `bits` bits
// stands for.
void cut_codebook(std::span<const int8_t> whole, int bits, std::span<int8_t> cut);

// Returns some rows of a weight, in this order, in its format. Vector codes, whose codebooks are shared by rows, are
// refused with an Error.
LinearWeight take_rows(const LinearWeight& w, std::span<const int32_t> rows);

LinearWeight make_dense(OwnedTensor w, OwnedTensor bias = {});
// Returns an all-zero weight of this format with every tensor allocated, for quantisers to fill.
LinearWeight allocate_weight(const FormatSpec& spec, int64_t out, int64_t in);

// These return the decoded values of one row, or of the matrix (out, in), in FP32. They define the meaning of a format,
// and kernels are tested against them.
void decode_row(const LinearWeight& w, int64_t row, std::span<float> values);
std::vector<float> decode(const LinearWeight& w);

// These are the names and tensors of a weight as stored under `prefix` in a file, e.g. prefix + ".plane0", ".scale",
// ".row_scale", ".zero", ".codebook". A dense weight is `prefix` + ".weight" itself. The order is fixed.
struct StoredTensor {
  std::string suffix;
  Tensor tensor;
};
std::vector<StoredTensor> stored_tensors(const LinearWeight& w);
// Returns the codebook that a weight shares with others of its format (shared_name in format_spec.h), or null where
// there is none. It is not among the stored tensors.
const OwnedTensor* shared_codebook(const LinearWeight& w);
// Returns the stored tensors and, as ".codebook", the shared one. load_weight asks for exactly these.
std::vector<StoredTensor> whole_tensors(const LinearWeight& w);
// Checks contents that dtype and shape do not determine and that a damaged file may break: the indices and counts of
// vector codes. load_weight() calls it. Throws an Error that begins with the `name` of the weight.
void check_codes(const LinearWeight& w, const std::string& name = "");
// Builds a weight from its tensors, the inverse of whole_tensors. `find` returns the tensor of a suffix, already
// checked to have this dtype and shape. Every tensor of the format is required. ".bias" (f32 (out)) is asked for last,
// and an empty tensor there means a linear without bias.
LinearWeight load_weight(
    const FormatSpec& spec, int64_t out, int64_t in,
    const std::function<OwnedTensor(const std::string& suffix, DType dtype, const Shape& shape)>& find,
    const std::string& name = "");

}  // namespace fidelio
