// This file defines vector codes with signs and sparse corrections, which are SCVQ (ACL 2026, 2026.acl-long.403) in the
// form of a file.
//
//   w[o][8 v + j] = row_scale[o] column_scale[8 v + j] (+-codebook[block of o][index[o][v]][j]) + correction
//
// A code is the index of a stored centroid of 8 signed bytes together with 1, 4 or 8 signs: one for the whole vector,
// one for each pair of entries, or one for each entry. A block is a run of rows, about 2^20 weights, with a codebook of
// its own. A kernel that goes over rows thus keeps one codebook in its first-level cache. Scales of rows and columns
// are stored once a matrix. They take .008 bits a weight of a 4096 x 4096 matrix; stored once for each block of 1024 x
// 1024, as in the paper, they would take .031.
//
// With `shared`, all matrices of this format in a model use one codebook, for which a file has one tensor. Normalised
// rows and columns make matrices so alike that sharing adds only 2 to 3% to the error, and then the 2^12 entries cost
// almost no bits a weight.
//
// `sparse` vectors of the matrix have a correction: 8 signed bytes times an FP16 scale, in the units of the weight, so
// a reader adds it without knowing any other scale.
#pragma once
#include <algorithm>
#include <span>
#include <string>

#include "core/tensor.h"
#include "formats/format_spec.h"

namespace fidelio {

inline constexpr int64_t kVectorDim = 8;

struct VectorShape {
  int64_t out = 0, in = 0;
  int64_t vectors = 0;  // A row has ceil(in / 8) vectors; entries of the last one beyond the matrix are not used.
  int64_t blocks = 0;   // This counts the codebooks.
  int64_t entries = 0;  // A codebook has so many entries.
  int64_t sparse = 0;   // The matrix has so many corrections.
  bool shared = false;  // If true, there is one codebook, which is not stored with the matrix.
  int signs = 0;        // A code has 1, 4 or 8 signs.
  // If true, each vector has a nibble beside the low byte of its index. It holds the high bits of the index and, above
  // them, the sign if there is only one.
  bool has_high = false;
  int64_t sign_bytes = 0;  // A row of the plane of signs has so many bytes; 0 if there is one sign.

  // Rows [first_row(b), first_row(b + 1)) use codebook b. Blocks are whole multiples of 16 rows, split evenly.
  int64_t first_row(int64_t block) const { return std::min(out, (out + 15) / 16 * block / blocks * 16); }
  int64_t block_of(int64_t row) const;
};
VectorShape vector_shape(const FormatSpec& spec, int64_t out, int64_t in);

struct SignedVectors {
  VectorShape shape;
  OwnedTensor index;  // It is u8 (out, vectors) and holds the low byte of the index.
  OwnedTensor high;   // It is u8 (out, ceil(vectors / 2)) with vector v in the nibble v % 2 of byte v / 2, or empty.
  // This is u8 (out, ceil(vectors / 2)) with 4 signs, (out, vectors) with 8; bit j is the sign of pair or entry j.
  OwnedTensor sign;
  OwnedTensor codebook;      // It is i8 (blocks * entries, 8), from -127 to 127.
  OwnedTensor row_scale;     // It is f16 (out).
  OwnedTensor column_scale;  // It is f16 (in).
  // The corrections follow row by row, with the vectors of a row ascending.
  OwnedTensor sparse_count;  // It is u16 (out).
  OwnedTensor sparse_index;  // It is u16 (sparse) and holds the vector.
  OwnedTensor sparse_value;  // It is i8 (sparse, 8).
  OwnedTensor sparse_scale;  // It is f16 (sparse).
};

struct VectorChoice {
  int index = 0;
  uint8_t signs = 0;  // Bit j negates entry j (of 8 signs), pair j (of 4) or the whole vector (of 1).
  bool operator==(const VectorChoice&) const = default;
};
VectorChoice get_vector(const SignedVectors& w, int64_t row, int64_t vector);
void set_vector(SignedVectors& w, int64_t row, int64_t vector, VectorChoice choice);
// Returns one bit for each of the 8 entries: the sign of that entry.
uint8_t spread_signs(int signs, uint8_t bits);

inline Shape codebook_shape(const VectorShape& s) { return {s.blocks * s.entries, kVectorDim}; }

// Calls visit(suffix, dtype, shape, tensor&) for each tensor that is stored with the matrix, in the order of the file.
template <typename Visit>
void visit_vectors(SignedVectors& m, const Visit& visit) {
  const VectorShape& s = m.shape;
  visit(".plane0", DType::u8, Shape{s.out, s.vectors}, m.index);
  if (s.has_high) visit(".plane1", DType::u8, Shape{s.out, (s.vectors + 1) / 2}, m.high);
  if (s.sign_bytes > 0) visit(".sign", DType::u8, Shape{s.out, s.sign_bytes}, m.sign);
  if (!s.shared) visit(".codebook", DType::i8, codebook_shape(s), m.codebook);
  visit(".row_scale", DType::f16, Shape{s.out}, m.row_scale);
  visit(".column_scale", DType::f16, Shape{s.in}, m.column_scale);
  if (s.sparse == 0) return;
  visit(".sparse_count", DType::u16, Shape{s.out}, m.sparse_count);
  visit(".sparse_index", DType::u16, Shape{s.sparse}, m.sparse_index);
  visit(".sparse_value", DType::i8, Shape{s.sparse, kVectorDim}, m.sparse_value);
  visit(".sparse_scale", DType::f16, Shape{s.sparse}, m.sparse_scale);
}

// Throws Error where an index exceeds its codebook, a centroid has an entry of -128, the counts do not add up to the
// number of corrections, or the corrections of a row are out of order or name no vector.
void check_vectors(const SignedVectors& w, const std::string& name);

// `values` has `in` places. It adds up the counts of all rows before this one.
void decode_vectors(const SignedVectors& w, int64_t row, std::span<float> values);
int64_t vector_code_bytes(const FormatSpec& spec, int64_t out, int64_t in);  // A shared codebook is not counted.

// Returns bits per weight by equation 7 of the SCVQ paper with d = 8, b_c = 8 and g = 2^20 weights a block (its "g =
// 1024" would give 162 bits): log2(k)/8 + k (8 * 8 + 16) / (g 2^signs) + 16 r + 32 / sqrt(g). The formula has an FP16
// scale for each centroid, which the file does not have, and omits the places of the corrections, which the file
// stores.
double scvq_paper_bits(int log2_centroids, int signs, double sparse_fraction);

}  // namespace fidelio
