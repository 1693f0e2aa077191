#include "kernels/cpu/vectors/vectors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/vectors/vector_rows.h"

namespace fidelio::cpu {
namespace {

using vectors::kDim;
using vectors::kTile;

constexpr int kBlock = 16;     // outputs
constexpr int kLayout = 1000;  // shared with no other kind

// The packed form has everything as in the file, one tensor after the other, with scales widened to FP32 and, in
// place of the counts, where each row's corrections begin.
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

// Returns the 8 entries of vector v with their signs, as integers.
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

// A Tile is a tile of rows of x, padded to whole cache lines of words. Each thread keeps its own, which grows as
// needed.
struct Tile {
  std::vector<float> plain, scaled, scale;
  Buffer words;  // int16_t; a load that is not aligned would touch two cache lines
  int64_t stride = 0, groups = 0;

  void resize(int64_t vectors, bool as_words) {
    stride = (vectors + 3) / 4 * 4 * kDim;
    groups = (vectors + vectors::kGroup - 1) / vectors::kGroup;
    const auto size = static_cast<size_t>(kTile * stride);
    if (plain.size() < size) plain.resize(size), scaled.resize(size);
    if (as_words && words.size() < 2 * size) words = Buffer(2 * size);
    if (as_words && scale.size() < static_cast<size_t>(kTile * groups))
      scale.resize(static_cast<size_t>(kTile * groups));
  }

  void take(int64_t m, const float* x, const float* column, int64_t in) {
    float *to = plain.data() + m * stride, *times = scaled.data() + m * stride;
    for (int64_t c = 0; c < in; ++c) to[c] = x[c], times[c] = x[c] * column[c];
    std::fill(to + in, to + stride, 0.0f);
    std::fill(times + in, times + stride, 0.0f);
  }

  // Rounds row m's scaled values to words. A value that is not finite makes the scale NaN, by which every sum is
  // multiplied.
  void round(int64_t m) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * vectors::kGroup * kDim, end = std::min(stride, begin + vectors::kGroup * kDim);
      const float* from = scaled.data() + m * stride;
      int16_t* to = words.as<int16_t>() + m * stride;
      float range = 0;
      bool finite = true;
      for (int64_t c = begin; c < end; ++c) {
        range = std::max(range, std::fabs(from[c]));
        finite &= std::fabs(from[c]) <= std::numeric_limits<float>::max();
      }
      const bool usual = finite && range > 1e-30f;  // a smaller range would overflow the factor
      const float factor = usual ? vectors::kSteps / range : 0.0f;
      for (int64_t c = begin; c < end; ++c)
        to[c] = usual ? static_cast<int16_t>(std::nearbyint(from[c] * factor)) : int16_t{0};
      scale[static_cast<size_t>(m * groups + g)] = usual    ? range / vectors::kSteps
                                                   : finite ? 0.0f
                                                            : std::numeric_limits<float>::quiet_NaN();
    }
  }
};

// Multiplies every row of the range for each tile of rows of x.
template <vectors::Multiply kMultiply, bool kWords>
void multiply(const Linear& w, const Prepared& x, int64_t first, int64_t last, float* y, int64_t y_stride, bool add) {
  const Layout l(w.spec, w.out, w.in);
  const int64_t last_row = std::min(w.out, last * kBlock);
  static thread_local Tile tile;
  tile.resize(l.shape.vectors, kWords);
  const float* bias = w.bias.size() ? w.bias.as<float>() : nullptr;
  for (int64_t m = 0; m < x.rows; m += kTile) {
    const int64_t rows = std::min<int64_t>(kTile, x.rows - m);
    for (int64_t i = 0; i < rows; ++i) {
      tile.take(i, x.values + (m + i) * w.in, at<float>(w.packed, l.column), w.in);
      if (kWords) tile.round(i);
    }
    for (int64_t r = first * kBlock; r < last_row; ++r) {
      float sums[kTile], corrections[kTile];
      kMultiply({.row = row_of(w, l, r),
                 .vectors = l.shape.vectors,
                 .signs = l.shape.signs,
                 .scaled = tile.scaled.data(),
                 .words = tile.words.as<const int16_t>(),
                 .scale = tile.scale.data(),
                 .groups = tile.groups,
                 .x = tile.plain.data(),
                 .stride = tile.stride,
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

// Decodes a row by the same products as decode_vectors(), so to the same bits.
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

template <vectors::Multiply kFloats, vectors::Multiply kWords>
std::span<const LinearKernel> table(const char* floats, const char* words, Isa isa) {
  static const auto rows = [&] {
    const auto row = [&](Activations mode) {
      const bool whole = mode != Activations::f32;
      return LinearKernel{.name = whole ? words : floats,
                          .kind = Kind::vq,
                          .bits = 0,
                          .mode = mode,
                          .isa = isa,
                          .form = Form::f32,
                          .block = kBlock,
                          .accepts = always,
                          .pack = pack,
                          .layout = kLayout,
                          .multiply = whole ? multiply<kWords, true> : multiply<kFloats, false>,
                          .decode_row = decode_row};
    };
    return std::array{row(Activations::f32), row(Activations::a16), row(Activations::a8)};
  }();
  return rows;
}

void correct(const vectors::Job& job) {
  for (int64_t m = 0; m < job.rows; ++m) {
    float c[kDim] = {};
    for (int64_t i = 0; i < job.row.sparse; ++i)
      for (int j = 0; j < kDim; ++j)
        c[j] += job.row.sparse_scale[i] * static_cast<float>(job.row.sparse_value[i * kDim + j]) *
                job.x[m * job.stride + job.row.sparse_index[i] * kDim + j];
    job.corrections[m] = sum(c);
  }
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
  }
  correct(job);
}

void vectors::multiply_words_portable(const Job& job) {
  float a[kTile][kDim] = {}, entries[kDim];
  for (int64_t g = 0; g < job.groups; ++g) {
    int32_t whole[kTile][kDim] = {};
    for (int64_t v = g * kGroup; v < std::min(job.vectors, (g + 1) * kGroup); ++v) {
      entries_of(job.row, job.signs, v, entries);
      for (int64_t m = 0; m < job.rows; ++m)
        for (int j = 0; j < kDim; ++j)
          whole[m][v % 2 * 4 + j / 2] += static_cast<int32_t>(entries[j]) * job.words[m * job.stride + v * kDim + j];
    }
    for (int64_t m = 0; m < job.rows; ++m)
      for (int j = 0; j < kDim; ++j)
        a[m][j] = std::fma(job.scale[m * job.groups + g], static_cast<float>(whole[m][j]), a[m][j]);
  }
  for (int64_t m = 0; m < job.rows; ++m) job.sums[m] = sum(a[m]);
  correct(job);
}

std::span<const LinearKernel> vector_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512)
    return table<vectors::multiply_avx2, vectors::multiply_words_avx512>("vq x f32 avx2", "vq a16 avx512", Isa::avx512);
  if (isa == Isa::avx2)
    return table<vectors::multiply_avx2, vectors::multiply_words_avx2>("vq x f32 avx2", "vq a16 avx2", Isa::avx2);
#endif
  if (isa == Isa::portable)
    return table<vectors::multiply_portable, vectors::multiply_words_portable>("vq x f32 portable", "vq a16 portable",
                                                                               Isa::portable);
  return {};
}

}  // namespace fidelio::cpu
