#include "train/tune/vector_latents.h"

#include <algorithm>
#include <cmath>

#include "train/host/vector_rounding.h"

namespace fidelio::train {
namespace {

constexpr int64_t kNeighbours = 32;

VectorSizes sizes_of(const VectorShape& m) {
  return {m.out, m.in, m.vectors, m.entries, std::min(kNeighbours, m.entries), m.blocks, m.sparse, m.signs};
}

std::vector<float> codebook_of(const SignedVectors& m) {
  const auto bytes = m.codebook.as<const int8_t>();
  return {bytes.begin(), bytes.end()};
}

VectorNeighbours find_neighbours(const VectorSizes& s, const std::vector<float>& codebook) {
  VectorNeighbours l;
  std::vector<std::pair<float, int32_t>> order(static_cast<size_t>(s.entries));
  double cells = 0;
  for (int64_t b = 0; b < s.books; ++b) {
    const float* book = codebook.data() + b * s.entries * kVector;
    for (int64_t k = 0; k < s.entries; ++k) {
      for (int64_t i = 0; i < s.entries; ++i) {
        float distance = 0;
        for (int64_t j = 0; j < kVector; ++j) {
          const float by = book[i * kVector + j] - book[k * kVector + j];
          distance += by * by;
        }
        order[static_cast<size_t>(i)] = {i == k ? -1.0f : distance, static_cast<int32_t>(i)};
      }
      std::partial_sort(order.begin(), order.begin() + s.neighbours, order.end());
      for (int64_t i = 0; i < s.neighbours; ++i)
        l.index.push_back(static_cast<float>(order[static_cast<size_t>(i)].second));
      cells += std::sqrt(std::max(0.0f, order[1].first) / kVector);
    }
  }
  l.cell = std::max(1.0, cells / static_cast<double>(s.books * s.entries));
  return l;
}

void read_corrections(const SignedVectors& m, VectorLatents& l) {
  size_t at = 0;
  for (int64_t r = 0; l.sizes.corrections > 0 && r < m.shape.out; ++r)
    for (const size_t end = at + m.sparse_count.as<const uint16_t>()[static_cast<size_t>(r)]; at < end; ++at) {
      l.place.push_back(static_cast<float>(r));
      l.place.push_back(static_cast<float>(m.sparse_index.as<const uint16_t>()[at]));
      const float scale = to_float(m.sparse_scale.as<const f16>()[at]);
      for (size_t j = 0; j < kVector; ++j)
        l.correction.push_back(scale * static_cast<float>(m.sparse_value.as<const int8_t>()[at * kVector + j]));
    }
}

// Places the latents of vector v of row r on its entry, or towards x (in levels) as far as the entry stays the
// nearest.
void place_vector(VectorLatents& l, int64_t r, int64_t v, const float* x) {
  const VectorSizes& s = l.sizes;
  const int64_t first = v * kVector, count = std::min<int64_t>(kVector, s.in - first);
  const auto code = static_cast<int64_t>(l.code[static_cast<size_t>(r * s.vectors + v)]), index = code % s.entries;
  const auto block = static_cast<int64_t>(l.book[static_cast<size_t>(r)]);
  const float* book = l.codebook.data() + block * s.entries * kVector;
  const float* near = l.neighbours.data() + (block * s.entries + index) * s.neighbours;
  for (const float share : {0.9f, 0.6f, 0.4f, 0.2f, 0.1f, 0.0f}) {
    float* to = &l.latent[static_cast<size_t>(r * s.in + first)];
    for (int64_t j = 0; j < count; ++j) {
      const float level = book[index * kVector + j];
      const float entry = is_negated(s.signs, static_cast<int>(code / s.entries), j) ? -level : level;
      to[j] = entry + (x == nullptr || !std::isfinite(x[j]) ? 0.0f : share * (x[j] - entry));
    }
    if (nearest_vector(to, count, book, near, s.neighbours, s.entries, s.signs) == code) return;
  }
}

}  // namespace

VectorNeighbours vector_neighbours(const LinearWeight& w) {
  const auto& m = std::get<SignedVectors>(w.main);
  return find_neighbours(sizes_of(m.shape), codebook_of(m));
}

VectorLatents vector_latents(const LinearWeight& w, std::span<const float> source, const VectorNeighbours& near) {
  const auto& m = std::get<SignedVectors>(w.main);
  const VectorShape& shape = m.shape;
  VectorLatents l;
  l.sizes = sizes_of(shape);
  const VectorSizes& s = l.sizes;
  l.codebook = codebook_of(m), l.neighbours = near.index;
  for (const f16 x : m.row_scale.as<const f16>()) l.row.push_back(to_float(x));
  for (const f16 x : m.column_scale.as<const f16>()) l.column.push_back(to_float(x));
  for (int64_t r = 0; r < w.out; ++r) l.book.push_back(static_cast<float>(shape.block_of(r)));
  read_corrections(m, l);
  std::vector<float> wanted(source.begin(), source.end());
  for (int64_t i = 0; !source.empty() && i < s.corrections; ++i)
    for (int64_t j = 0; j < kVector; ++j) {
      const int64_t c = static_cast<int64_t>(l.place[static_cast<size_t>(2 * i + 1)]) * kVector + j;
      if (c < w.in)
        wanted[static_cast<size_t>(static_cast<int64_t>(l.place[static_cast<size_t>(2 * i)]) * w.in + c)] -=
            l.correction[static_cast<size_t>(i * kVector + j)];
    }
  l.latent.resize(static_cast<size_t>(w.out * w.in));
  for (int64_t r = 0; r < w.out; ++r)
    for (int64_t v = 0; v < s.vectors; ++v) {
      const VectorChoice c = get_vector(m, r, v);
      l.code.push_back(static_cast<float>(c.index + s.entries * c.signs));
      float x[kVector] = {};
      for (int64_t j = 0; !source.empty() && j < kVector && v * kVector + j < w.in; ++j)
        x[j] = wanted[static_cast<size_t>(r * w.in + v * kVector + j)] /
               (l.row[static_cast<size_t>(r)] * l.column[static_cast<size_t>(v * kVector + j)]);
      place_vector(l, r, v, source.empty() ? nullptr : x);
    }
  return l;
}

LinearWeight vector_weight_of(const FormatSpec& spec, const VectorLatents& l) {
  const VectorSizes& s = l.sizes;
  LinearWeight w = allocate_weight(spec, s.out, s.in);
  auto& m = std::get<SignedVectors>(w.main);
  for (size_t i = 0; i < l.row.size(); ++i) m.row_scale.as<f16>()[i] = to_f16(l.row[i]);
  for (size_t i = 0; i < l.column.size(); ++i) m.column_scale.as<f16>()[i] = to_f16(l.column[i]);
  for (size_t i = 0; i < l.codebook.size(); ++i) m.codebook.as<int8_t>()[i] = static_cast<int8_t>(l.codebook[i]);
  for (int64_t r = 0; r < s.out; ++r)
    for (int64_t v = 0; v < s.vectors; ++v) {
      const auto code = static_cast<int64_t>(l.code[static_cast<size_t>(r * s.vectors + v)]);
      set_vector(m, r, v, {static_cast<int>(code % s.entries), static_cast<uint8_t>(code / s.entries)});
    }
  for (int64_t i = 0; i < s.corrections; ++i) {
    const auto at = static_cast<size_t>(i);
    const float scale = correction_scale(&l.correction[at * kVector]);
    ++m.sparse_count.as<uint16_t>()[static_cast<size_t>(l.place[2 * at])];
    m.sparse_index.as<uint16_t>()[at] = static_cast<uint16_t>(l.place[2 * at + 1]);
    m.sparse_scale.as<f16>()[at] = to_f16(scale);
    for (size_t j = 0; j < kVector; ++j)
      m.sparse_value.as<int8_t>()[at * kVector + j] =
          static_cast<int8_t>(correction_level(l.correction[at * kVector + j], scale));
  }
  return w;
}

}  // namespace fidelio::train
