// Vector codes with signs and sparse corrections: SCVQ (ACL 2026, 2026.acl-long.403) as a file.
//
//   w[o][8 v + j] = row_scale[o] column_scale[8 v + j] (+-codebook[block of o][index[o][v]][j]) + correction
//
// A code is the index of a stored centroid of 8 signed bytes and 1, 4 or 8 signs: one for the whole vector, one for each
// pair of entries, one for each entry. A block is a run of rows with a codebook of its own, about 2^20 weights: a kernel
// that walks rows keeps one codebook in its first-level cache, and scales of rows and columns are stored once a matrix
// (.008 bits a weight of a 4096 x 4096 matrix; once for each block of 1024 x 1024, as in the paper, they take .031).
// A codebook may be the model's instead (`shared`): one for all matrices that have the format, of which a file has one
// tensor. Normalised rows and columns make matrices so alike that it costs 2 to 3% of the error, and 2^12 entries no
// bits.
// Some vectors, `sparse` of them in the matrix, have a correction: 8 signed bytes times an FP16, in the weight's own
// units, so that a reader adds it without knowing any other scale.
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
  int64_t vectors = 0;  // of a row: ceil(in / 8); what the last one has beyond the matrix is not used
  int64_t blocks = 0;   // codebooks
  int64_t entries = 0;  // of a codebook
  int64_t sparse = 0;   // corrections in the matrix
  bool shared = false;  // one codebook, which is not stored with the matrix
  int signs = 0;        // 1, 4 or 8
  bool has_high =
      false;  // a nibble a vector beside the index's low byte: its high bits and, with one sign, that on top
  int64_t sign_bytes = 0;  // of a row's plane of signs; 0 with one sign

  // Rows [first_row(b), first_row(b + 1)) use codebook b: whole sixteens, evenly.
  int64_t first_row(int64_t block) const { return std::min(out, (out + 15) / 16 * block / blocks * 16); }
  int64_t block_of(int64_t row) const;
};
VectorShape vector_shape(const FormatSpec& spec, int64_t out, int64_t in);

struct SignedVectors {
  VectorShape shape;
  OwnedTensor index;      // u8 (out, vectors): the low byte
  OwnedTensor high;       // u8 (out, ceil(vectors / 2)): vector v in bits 4 (v % 2).. of byte v / 2; or empty
  OwnedTensor sign;       // u8 (out, ceil(vectors / 2)) with 4 signs, (out, vectors) with 8, bit j for pair or entry j
  OwnedTensor codebook;   // i8 (blocks * entries, 8), from -127 to 127
  OwnedTensor row_scale;  // f16 (out)
  OwnedTensor column_scale;  // f16 (in)
  // Corrections, rows one after the other, vectors of a row ascending.
  OwnedTensor sparse_count;  // u16 (out)
  OwnedTensor sparse_index;  // u16 (sparse): the vector
  OwnedTensor sparse_value;  // i8 (sparse, 8)
  OwnedTensor sparse_scale;  // f16 (sparse)
};

struct VectorChoice {
  int index = 0;
  uint8_t signs = 0;  // bit j: entry j (of 8), pair j (of 4) or all (of 1) are negated
  bool operator==(const VectorChoice&) const = default;
};
VectorChoice get_vector(const SignedVectors& w, int64_t row, int64_t vector);
void set_vector(SignedVectors& w, int64_t row, int64_t vector, VectorChoice choice);
// The signs of the 8 entries, bit by bit.
uint8_t spread_signs(int signs, uint8_t bits);

inline Shape codebook_shape(const VectorShape& s) { return {s.blocks * s.entries, kVectorDim}; }

// visit(suffix, dtype, shape, tensor&) for each tensor that is stored with the matrix, in the order of the file.
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

// Throws Error where an index reaches beyond its codebook, a centroid has an entry of -128, counts do not add up to the corrections there are, or a
// row's corrections are out of order or of no vector.
void check_vectors(const SignedVectors& w, const std::string& name);

void decode_vectors(const SignedVectors& w, int64_t row, std::span<float> values);  // (in); walks the counts before
int64_t vector_code_bytes(const FormatSpec& spec, int64_t out, int64_t in);         // without a shared codebook

// The paper's equation 7 with d = 8, b_c = 8 and g = 2^20 weights a block (its "g = 1024" would give 162 bits):
// log2(k)/8 + k (8 * 8 + 16) / (g 2^signs) + 16 r + 32 / sqrt(g). It has an FP16 scale for each centroid, which the file
// has not, and leaves out where the corrections are, which the file has.
double scvq_paper_bits(int log2_centroids, int signs, double sparse_fraction);

}  // namespace fidelio
