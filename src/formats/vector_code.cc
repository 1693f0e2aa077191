#include "formats/vector_code.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "formats/vector_rows.h"

namespace fidelio {
namespace {

constexpr double kBlockWeights = 1 << 20;

int nibble(const uint8_t* bytes, int64_t i) { return (bytes[i / 2] >> (4 * (i % 2))) & 15; }

void set_nibble(uint8_t* bytes, int64_t i, int value) {
  const int shift = static_cast<int>(4 * (i % 2));
  bytes[i / 2] = static_cast<uint8_t>((bytes[i / 2] & ~(15 << shift)) | (value << shift));
}

}  // namespace

VectorShape vector_shape(const FormatSpec& spec, int64_t out, int64_t in) {
  VectorShape s{.out = out, .in = in};
  s.vectors = (in + kVectorDim - 1) / kVectorDim;
  check(s.vectors <= 65536, "{} takes at most {} columns, not {}", to_string(spec), 65536 * kVectorDim, in);
  const double weights = static_cast<double>(out) * static_cast<double>(in);
  s.shared = spec.shared;
  s.blocks = s.shared ? 1 : std::clamp<int64_t>(std::llround(weights / kBlockWeights), 1, (out + 15) / 16);
  s.entries = int64_t{1} << (spec.bits - spec.signs);
  s.signs = spec.signs;
  s.has_high = spec.signs == 1 || s.entries > 256;
  s.sign_bytes = spec.signs == 1 ? 0 : spec.signs == 4 ? (s.vectors + 1) / 2 : s.vectors;
  // This is computed in integers, so the size of a file is the same on every machine.
  if (spec.sparse > 0) s.sparse = std::max<int64_t>(1, (out * s.vectors * spec.sparse + 5000) / 10000);
  return s;
}

int64_t VectorShape::block_of(int64_t row) const {
  int64_t block = row / 16 * blocks / ((out + 15) / 16);
  while (block + 1 < blocks && first_row(block + 1) <= row) ++block;
  return block;
}

VectorChoice get_vector(const SignedVectors& w, int64_t row, int64_t v) {
  const VectorShape& s = w.shape;
  VectorChoice c{.index = w.index.as<const uint8_t>()[row * s.vectors + v]};
  if (s.has_high) {
    const int high = nibble(&w.high.as<const uint8_t>()[row * ((s.vectors + 1) / 2)], v);
    c.index |= (s.signs == 1 ? high & 7 : high) << 8;
    if (s.signs == 1) c.signs = static_cast<uint8_t>(high >> 3);
  }
  if (s.signs == 4) c.signs = static_cast<uint8_t>(nibble(&w.sign.as<const uint8_t>()[row * s.sign_bytes], v));
  if (s.signs == 8) c.signs = w.sign.as<const uint8_t>()[row * s.sign_bytes + v];
  return c;
}

void set_vector(SignedVectors& w, int64_t row, int64_t v, VectorChoice c) {
  const VectorShape& s = w.shape;
  w.index.as<uint8_t>()[row * s.vectors + v] = static_cast<uint8_t>(c.index);
  if (s.has_high)
    set_nibble(&w.high.as<uint8_t>()[row * ((s.vectors + 1) / 2)], v,
               (c.index >> 8) | (s.signs == 1 ? c.signs << 3 : 0));
  if (s.signs == 4) set_nibble(&w.sign.as<uint8_t>()[row * s.sign_bytes], v, c.signs);
  if (s.signs == 8) w.sign.as<uint8_t>()[row * s.sign_bytes + v] = c.signs;
}

uint8_t spread_signs(int signs, uint8_t bits) {
  if (signs == 8) return bits;
  if (signs == 1) return bits ? 0xff : 0;
  uint8_t spread = 0;
  for (int pair = 0; pair < 4; ++pair)
    if (bits >> pair & 1) spread = static_cast<uint8_t>(spread | 3 << (2 * pair));
  return spread;
}

void check_vectors(const SignedVectors& w, const std::string& name) {
  const VectorShape& s = w.shape;
  // Indices of this codebook never use the other bits of the nibbles. The last nibble of an odd row is not read.
  const int allowed = static_cast<int>((s.entries - 1) >> 8) | (s.signs == 1 ? 8 : 0);
  if (s.has_high && allowed != 15)
    for (int64_t row = 0; row < s.out; ++row)
      for (int64_t v = 0; v < s.vectors; ++v) {
        const int index = get_vector(w, row, v).index;
        check(index < s.entries, "{}: vector {} of row {} is entry {} of a codebook of {}: the file is damaged", name,
              v, row, index, s.entries);
      }
  for (const int8_t level : w.codebook.as<const int8_t>())
    check(level != -128, "{}: a centroid has an entry of -128, whose negative no byte holds: the file is damaged",
          name);
  if (s.sparse == 0) return;
  const auto counts = w.sparse_count.as<const uint16_t>();
  const auto indices = w.sparse_index.as<const uint16_t>();
  int64_t at = 0;
  for (int64_t row = 0; row < s.out; ++row) {
    check(counts[row] <= s.vectors && at + counts[row] <= s.sparse,
          "{}: row {} has {} corrections of {} vectors, {} are left: the file is damaged", name, row, counts[row],
          s.vectors, s.sparse - at);
    for (int64_t i = at; i < at + counts[row]; ++i)
      check(indices[i] < s.vectors && (i == at || indices[i] > indices[i - 1]),
            "{}: a correction of row {} is of vector {}, which must ascend below {}: the file is damaged", name, row,
            indices[i], s.vectors);
    at += counts[row];
  }
  check(at == s.sparse, "{}: the rows have {} corrections, the matrix {}: the file is damaged", name, at, s.sparse);
}

namespace {

// Decodes a row. `at` is the place where the corrections of the row begin.
void decode_at(const SignedVectors& w, int64_t row, int64_t at, std::span<float> values) {
  const VectorShape& s = w.shape;
  const float row_scale = to_float(w.row_scale.as<const f16>()[row]);
  const auto columns = w.column_scale.as<const f16>();
  const int8_t* book = &w.codebook.as<const int8_t>()[s.block_of(row) * s.entries * kVectorDim];
  for (int64_t v = 0; v < s.vectors; ++v) {
    const VectorChoice c = get_vector(w, row, v);
    const uint8_t negative = spread_signs(s.signs, c.signs);
    for (int64_t j = 0; j < kVectorDim && v * kVectorDim + j < s.in; ++j) {
      const int level = book[c.index * kVectorDim + j];
      // The product of two FP16 numbers is exact in FP32, so this rounds once.
      values[v * kVectorDim + j] =
          row_scale * to_float(columns[v * kVectorDim + j]) * static_cast<float>(negative >> j & 1 ? -level : level);
    }
  }
  if (s.sparse == 0) return;
  for (int64_t i = at; i < at + w.sparse_count.as<const uint16_t>()[row]; ++i) {
    const float scale = to_float(w.sparse_scale.as<const f16>()[i]);
    const int64_t first = w.sparse_index.as<const uint16_t>()[i] * kVectorDim;
    for (int64_t j = 0; j < kVectorDim && first + j < s.in; ++j)
      values[first + j] += scale * static_cast<float>(w.sparse_value.as<const int8_t>()[i * kVectorDim + j]);
  }
}

}  // namespace

void decode_vectors(const SignedVectors& w, int64_t row, std::span<float> values) {
  int64_t at = 0;
  for (int64_t before = 0; w.shape.sparse > 0 && before < row; ++before)
    at += w.sparse_count.as<const uint16_t>()[before];
  decode_at(w, row, at, values);
}

VectorRows::VectorRows(const SignedVectors& w) : w_(w), begin_(static_cast<size_t>(w.shape.out + 1), 0) {
  for (int64_t row = 0; w.shape.sparse > 0 && row < w.shape.out; ++row)
    begin_[row + 1] = begin_[row] + w.sparse_count.as<const uint16_t>()[row];
}

void VectorRows::decode(int64_t row, std::span<float> values) const { decode_at(w_, row, begin_[row], values); }

int64_t vector_code_bytes(const FormatSpec& spec, int64_t out, int64_t in) {
  const VectorShape s = vector_shape(spec, out, in);
  const int64_t codes = out * (s.vectors + (s.has_high ? (s.vectors + 1) / 2 : 0) + s.sign_bytes);
  const int64_t corrections = s.sparse > 0 ? 2 * out + s.sparse * (2 + kVectorDim + 2) : 0;
  return codes + (s.shared ? 0 : s.blocks * s.entries * kVectorDim) + 2 * (out + in) + corrections;
}

double scvq_paper_bits(int log2_centroids, int signs, double sparse_fraction) {
  const double stored = std::exp2(log2_centroids - signs);
  return log2_centroids / 8.0 + stored * (8 * 8 + 16) / kBlockWeights + 16 * sparse_fraction +
         32 / std::sqrt(kBlockWeights);
}

}  // namespace fidelio
