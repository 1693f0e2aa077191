// LinearWeight: a weight in its canonical life, as files and algorithms see it. y = decode(main) x + bias.
// The other life is a backend's packed Linear (kernels/backend.h); pack() is the only bridge, one way.
//
// Codes are stored as bit planes, the high bits first, so that a reader of the first planes alone has a valid narrower
// weight (docs/formats.md draws it):
//     bits    2    3      4    5      6      7        8
//     planes  [2]  [2,1]  [4]  [4,1]  [4,2]  [4,2,1]  [4,4]
// A plane of width w is u8 (rows, ceil(columns w / 8)); within a row the code of column c occupies bits [c w, c w + w)
// counted from the least significant bit of the first byte. w divides 8, so a code never straddles bytes.
#pragma once
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
// Whether codes of `bits` bits can be cut to their `high` high ones between two planes.
bool is_view_width(int bits, int high);

struct Codes {
  int bits = 0;
  int64_t rows = 0, columns = 0;
  std::vector<OwnedTensor> planes;  // one per plane_widths(bits): u8 (rows, ceil(columns * width / 8))

  static Codes allocate(int bits, int64_t rows, int64_t columns);
  uint8_t get(int64_t row, int64_t column) const;
  void set(int64_t row, int64_t column, uint8_t code);
  void get_row(int64_t row, std::span<uint8_t> codes) const;  // (columns)
  void set_row(int64_t row, std::span<const uint8_t> codes);
};

struct Dense {
  OwnedTensor w;  // f32, f16 or bf16 (out, in)
};

// w = scale (q - zero). Symmetric: zero = 2^(b-1), not stored. Of a view of the high planes: w = scale (2^d q + (2^d -
// 1) / 2 - zero), d = spec.below, the middle of what the missing bits could be; b and zero are the whole weight's.
struct IntGroup {
  Codes codes;            // (out, in)
  OwnedTensor scale;      // f16 (out, groups), or u8 (out, groups) times row_scale
  OwnedTensor row_scale;  // f32 (out) with u8 scales, else empty
  OwnedTensor zero;  // u8 (out, ceil(groups * b / 8)): b-bit zero points packed as a plane of b bits (see get_zero)
};

// A vector code whose vectors have `dim` entries; dim 1 is a grid. w = row_scale * scale * codebook[q].
struct VectorCode {
  int dim = 1;
  Codes codes;            // (out, in / dim)
  OwnedTensor codebook;   // i8 (2^bits, dim)
  OwnedTensor scale;      // i8 (out, groups), signed: the largest element of a group maps to the grid's end
  OwnedTensor row_scale;  // f32 (out)
};

// fp4: w = row_scale * (scale * e2m1(q) + offset), blocks of 16; fp8: w = row_scale * e4m3(q).
struct FpBlock {
  Codes codes;            // (out, in): 4 or 8 bits
  OwnedTensor scale;      // fp4: f8_e4m3 (out, blocks)
  OwnedTensor offset;     // fp4 with offset: f8_e4m3 (out, blocks)
  OwnedTensor row_scale;  // f32 (out): fp4's second-level scale (its E4M3 scales are relative to it), fp8's scale
};

struct LinearWeight {
  int64_t out = 0, in = 0;
  FormatSpec spec;
  std::variant<Dense, IntGroup, VectorCode, FpBlock, SignedVectors> main;
  OwnedTensor bias;  // f32 (out), or empty

  int64_t stored_bytes() const;  // equals fidelio::stored_bytes(spec, out, in) + the bias: a law
};

// The b-bit zero point of one group: bit g*b.. of the row's bit string, least significant first, may straddle bytes.
int get_zero(const IntGroup& w, int64_t row, int64_t g);
void set_zero(IntGroup& w, int64_t row, int64_t g, int zero);

// The narrower weight that the 2 or more high bits of integers, or of a grid's codes, are by themselves, decoded as above;
// a grid's entries are those of cut_codebook(). Where planes end there (is_view_width) it has the same tensors, else
// copies of codes. It is a way of reading a file, not a format of one, and cannot be stored.
LinearWeight high_planes(const LinearWeight& w, int bits);
// The means of the 2^d neighbours that a code of the high `bits` bits stands for, to the nearest: (2^bits).
void cut_codebook(std::span<const int8_t> whole, int bits, std::span<int8_t> cut);

// Some rows of a weight, in this order, in its format. Vector codes, which rows share, are refused.
LinearWeight take_rows(const LinearWeight& w, std::span<const int32_t> rows);

LinearWeight make_dense(OwnedTensor w, OwnedTensor bias = {});
// An all-zero weight of this format with every tensor allocated, for quantisers to fill.
LinearWeight allocate_weight(const FormatSpec& spec, int64_t out, int64_t in);

// The decoded values of one row, or of the matrix (out, in), in FP32. This is the meaning of a format: kernels are
// tested against it.
void decode_row(const LinearWeight& w, int64_t row, std::span<float> values);
std::vector<float> decode(const LinearWeight& w);

// Names and tensors of a weight as stored under `prefix` in a file: e.g. prefix + ".plane0", ".scale", ".row_scale",
// ".zero",
// ".codebook"; a dense weight is `prefix` + ".weight" itself. visit is called in a fixed order.
struct StoredTensor {
  std::string suffix;
  Tensor tensor;
};
std::vector<StoredTensor> stored_tensors(const LinearWeight& w);
// The codebook that a weight shares with others of its format (format_spec.h, shared_name): not among its stored
// tensors. Null where there is none.
const OwnedTensor* shared_codebook(const LinearWeight& w);
// The stored tensors and, as ".codebook", the shared one: all that load_weight asks for.
std::vector<StoredTensor> whole_tensors(const LinearWeight& w);
// What of a weight's tensors dtype and shape do not tell, and a damaged file may break: of vector codes, indices and
// counts. load_weight() checks it. Throws Error, which begins with the weight's `name`.
void check_codes(const LinearWeight& w, const std::string& name = "");
// The inverse of whole_tensors: `find` returns the tensor of a suffix, already checked to have this dtype and shape. Every tensor of the
// format is required; ".bias" (f32 (out)) is asked for last, and an empty tensor there means a linear without bias.
LinearWeight load_weight(
    const FormatSpec& spec, int64_t out, int64_t in,
    const std::function<OwnedTensor(const std::string& suffix, DType dtype, const Shape& shape)>& find,
    const std::string& name = "");

}  // namespace fidelio
