#include "kernels/cpu/vectors/vectors.h"

#include <array>
#include <vector>

#include "kernels/cpu/vectors/vector_rows.h"

namespace fidelio::cpu {
namespace {

using vectors::kDim;
using vectors::kTile;

constexpr int kBlock = 16;     // outputs
constexpr int kLayout = 1000;  // of no other kind

// The packed form: everything as in the file, one tensor after the other, with scales widened to FP32 and, in place of
// the counts, where each row's corrections begin.
struct Layout {
  VectorShape shape;
  int64_t high_stride, book, column, row, begin, index, high, sign, sparse_scale, sparse_index, sparse_value, bytes;

  Layout(const FormatSpec& spec, int64_t out, int64_t in) : shape(vector_shape(spec, out, in)) {
    const VectorShape& s = shape;
    high_stride = s.has_high ? (s.vectors + 1) / 2 : 0;
    int64_t at = 0;
    const auto take = [&](int64_t size) {
      const int64_t begins = at;
      at += (size + 63) / 64 * 64;
      return begins;
    };
    book = take(s.blocks * s.entries * kDim);
    column = take(s.vectors * kDim * 4);
    row = take(out * 4);
    begin = take((out + 1) * 8);
    index = take(out * s.vectors);
    high = take(out * high_stride);
    sign = take(out * s.sign_bytes);
    sparse_scale = take(s.sparse * 4);
    sparse_index = take(s.sparse * 2);
    sparse_value = take(s.sparse * kDim);
    bytes = at;
  }
};

template <typename T>
T* at(const Buffer& packed, int64_t offset) {
  return reinterpret_cast<T*>(packed.data() + offset);
}

void copy(const OwnedTensor& from, const Buffer& to, int64_t offset) {
  if (from) std::copy_n(from.view.data, from.view.bytes(), to.data() + offset);
}

Buffer pack(const LinearWeight& weight) {
  const auto& m = std::get<SignedVectors>(weight.main);
  const Layout layout(weight.spec, weight.out, weight.in);
  Buffer packed(static_cast<size_t>(layout.bytes));
  copy(m.codebook, packed, layout.book);
  copy(m.index, packed, layout.index);
  copy(m.high, packed, layout.high);
  copy(m.sign, packed, layout.sign);
  copy(m.sparse_index, packed, layout.sparse_index);
  copy(m.sparse_value, packed, layout.sparse_value);
  for (int64_t c = 0; c < weight.in; ++c)
    at<float>(packed, layout.column)[c] = to_float(m.column_scale.as<const f16>()[c]);
  for (int64_t r = 0; r < weight.out; ++r) at<float>(packed, layout.row)[r] = to_float(m.row_scale.as<const f16>()[r]);
  for (int64_t i = 0; i < m.shape.sparse; ++i)
    at<float>(packed, layout.sparse_scale)[i] = to_float(m.sparse_scale.as<const f16>()[i]);
  auto* begin = at<int64_t>(packed, layout.begin);
  begin[0] = 0;
  for (int64_t r = 0; r < weight.out; ++r)
    begin[r + 1] = begin[r] + (m.shape.sparse > 0 ? m.sparse_count.as<const uint16_t>()[r] : 0);
  return packed;
}

vectors::Row row_of(const Linear& w, const Layout& l, int64_t r) {
  const int64_t first = at<int64_t>(w.packed, l.begin)[r], last = at<int64_t>(w.packed, l.begin)[r + 1];
  const int64_t book = l.shape.block_of(r) * l.shape.entries * kDim;
  return {.index = at<uint8_t>(w.packed, l.index) + r * l.shape.vectors,
          .high = l.shape.has_high ? at<uint8_t>(w.packed, l.high) + r * l.high_stride : nullptr,
          .sign = l.shape.sign_bytes > 0 ? at<uint8_t>(w.packed, l.sign) + r * l.shape.sign_bytes : nullptr,
          .book = at<int8_t>(w.packed, l.book) + book,
          .sparse_index = at<uint16_t>(w.packed, l.sparse_index) + first,
          .sparse_value = at<int8_t>(w.packed, l.sparse_value) + first * kDim,
          .sparse_scale = at<float>(w.packed, l.sparse_scale) + first,
          .sparse = last - first};
}

int nibble(const uint8_t* bytes, int64_t i) { return (bytes[i / 2] >> (4 * (i % 2))) & 15; }

// The 8 entries of vector v with their signs, as whole numbers.
void entries_of(const vectors::Row& r, int signs, int64_t v, float* values) {
  int64_t index = r.index[v];
  int bits = 0;
  if (r.high) {
    const int high = nibble(r.high, v);
    index |= static_cast<int64_t>(signs == 1 ? high & 7 : high) << 8;
    bits = high >> 3;
  }
  if (signs == 4) bits = nibble(r.sign, v);
  if (signs == 8) bits = r.sign[v];
  const uint8_t negative = spread_signs(signs, static_cast<uint8_t>(bits));
  for (int j = 0; j < kDim; ++j) {
    const auto value = static_cast<float>(r.book[index * kDim + j]);
    values[j] = negative >> j & 1 ? -value : value;
  }
}

float sum(const float* a) { return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])); }

// For each tile of rows of x: x padded to whole vectors and x times the column scales, then every row of the range.
template <vectors::Multiply kMultiply>
void multiply(const Linear& w, const Prepared& x, int64_t first, int64_t last, float* y, int64_t y_stride, bool add) {
  const Layout l(w.spec, w.out, w.in);
  const int64_t stride = l.shape.vectors * kDim, last_row = std::min(w.out, last * kBlock);
  std::vector<float> plain(static_cast<size_t>(kTile * stride)), scaled(plain.size());
  const float* column = at<float>(w.packed, l.column);
  const float* bias = w.bias.size() ? w.bias.as<float>() : nullptr;
  for (int64_t m = 0; m < x.rows; m += kTile) {
    const int64_t rows = std::min<int64_t>(kTile, x.rows - m);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < w.in; ++c) {
        plain[i * stride + c] = x.values[(m + i) * w.in + c];
        scaled[i * stride + c] = plain[i * stride + c] * column[c];
      }
    for (int64_t r = first * kBlock; r < last_row; ++r) {
      float sums[kTile], corrections[kTile];
      kMultiply({.row = row_of(w, l, r),
                 .vectors = l.shape.vectors,
                 .signs = l.shape.signs,
                 .scaled = scaled.data(),
                 .x = plain.data(),
                 .stride = stride,
                 .rows = rows,
                 .sums = sums,
                 .corrections = corrections});
      for (int64_t i = 0; i < rows; ++i) {
        float value = at<float>(w.packed, l.row)[r] * sums[i] + corrections[i];
        if (bias) value += bias[r];
        float& to = y[(m + i) * y_stride + r];
        to = add ? to + value : value;
      }
    }
  }
}

// The same products as decode_vectors(), so the same bits.
void decode_row(const Linear& w, int64_t row, float* values) {
  const Layout l(w.spec, w.out, w.in);
  const vectors::Row r = row_of(w, l, row);
  const float scale = at<float>(w.packed, l.row)[row];
  float entries[kDim];
  for (int64_t v = 0; v < l.shape.vectors; ++v) {
    entries_of(r, l.shape.signs, v, entries);
    for (int64_t j = 0; j < kDim && v * kDim + j < w.in; ++j)
      values[v * kDim + j] = scale * at<float>(w.packed, l.column)[v * kDim + j] * entries[j];
  }
  for (int64_t i = 0; i < r.sparse; ++i)
    for (int64_t j = 0, c = r.sparse_index[i] * kDim; j < kDim && c + j < w.in; ++j)
      values[c + j] += r.sparse_scale[i] * static_cast<float>(r.sparse_value[i * kDim + j]);
}

bool always(const FormatSpec&, int64_t, int64_t) { return true; }

template <vectors::Multiply kMultiply>
std::span<const LinearKernel> table(const char* name, Isa isa) {
  static const auto rows = [&] {
    const auto row = [&](Activations mode) {
      return LinearKernel{
          name, Kind::vq, 0, mode, isa, Form::f32, kBlock, always, pack, kLayout, multiply<kMultiply>, decode_row};
    };
    return std::array{row(Activations::f32), row(Activations::a16), row(Activations::a8)};
  }();
  return rows;
}

}  // namespace

void vectors::multiply_portable(const Job& job) {
  float a[kTile][2][kDim] = {}, entries[kDim];
  for (int64_t v = 0; v < job.vectors; ++v) {
    entries_of(job.row, job.signs, v, entries);
    for (int64_t m = 0; m < job.rows; ++m)
      for (int j = 0; j < kDim; ++j) a[m][v % 2][j] += entries[j] * job.scaled[m * job.stride + v * kDim + j];
  }
  for (int64_t m = 0; m < job.rows; ++m) {
    for (int j = 0; j < kDim; ++j) a[m][0][j] += a[m][1][j];
    job.sums[m] = sum(a[m][0]);
    float c[kDim] = {};
    for (int64_t i = 0; i < job.row.sparse; ++i)
      for (int j = 0; j < kDim; ++j)
        c[j] += job.row.sparse_scale[i] * static_cast<float>(job.row.sparse_value[i * kDim + j]) *
                job.x[m * job.stride + job.row.sparse_index[i] * kDim + j];
    job.corrections[m] = sum(c);
  }
}

std::span<const LinearKernel> vector_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx2) return table<vectors::multiply_avx2>("vq x f32 avx2", Isa::avx2);
#endif
  if (isa == Isa::portable) return table<vectors::multiply_portable>("vq x f32 portable", Isa::portable);
  return {};
}

}  // namespace fidelio::cpu
