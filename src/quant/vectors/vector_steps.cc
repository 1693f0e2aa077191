// These are the steps of the quantiser that the host and a GPU (quant/device/vectors_cuda.cc) have in common.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/rng.h"
#include "quant/vectors/vector_work.h"

namespace fidelio {
namespace {

constexpr int64_t kSamplesPerEntry = 64;  // vectors per entry that a codebook is fitted to
constexpr size_t kScaleSamples = 1024;    // vectors that the scale of a shared codebook is fitted to
constexpr int kScaleRounds = 6;

}  // namespace

std::vector<int64_t> vector_order(std::span<const float> diagonal) {
  const auto in = static_cast<int64_t>(diagonal.size()), whole = in / kVectorDim;
  std::vector<double> sum(static_cast<size_t>(whole), 0.0);
  for (int64_t c = 0; c < whole * kVectorDim; ++c) sum[c / kVectorDim] += diagonal[c];
  std::vector<int64_t> order(static_cast<size_t>((in + kVectorDim - 1) / kVectorDim));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.begin() + whole, [&](int64_t a, int64_t b) { return sum[a] > sum[b]; });
  return order;
}

std::vector<int32_t> sample_vectors(const VectorShape& shape, int64_t block, std::span<const float> row,
                                    std::span<const uint8_t> corrected) {
  const int64_t first = shape.first_row(block), rows = shape.first_row(block + 1) - first;
  const int64_t wanted = std::max<int64_t>(1, kSamplesPerEntry * shape.entries / shape.vectors);
  std::vector<int32_t> vectors;
  Rng rng(2, static_cast<uint64_t>(block));
  for (int64_t place = 0; place < shape.vectors; ++place)
    for (int64_t i = 0; i < std::min(rows, wanted); ++i) {
      const int64_t r = first + (wanted >= rows ? i : static_cast<int64_t>(rng.below(static_cast<uint64_t>(rows))));
      if (corrected[r * shape.vectors + place] || row[r] == 0) continue;
      vectors.push_back(static_cast<int32_t>(r * shape.vectors + place));
    }
  if (vectors.empty()) vectors.push_back(-1);
  return vectors;
}

std::vector<int32_t> thinned(std::span<const int32_t> vectors) {
  const size_t step = std::max<size_t>(1, vectors.size() / kScaleSamples);
  std::vector<int32_t> some;
  for (size_t i = 0; i < vectors.size(); i += step) some.push_back(vectors[i]);
  return some;
}

float fit_shared_scale(const VectorSamples& s, const VectorBook& book) {
  double of_book = 0, of_samples = 0, many = 0;
  for (int64_t i = 0; i < book.entries() * kVectorDim; ++i)
    of_book += std::pow(book.at(i / kVectorDim, i % kVectorDim), 2) / static_cast<double>(book.entries() * kVectorDim);
  for (int64_t i = 0; i < s.size(); ++i)
    for (int64_t j = 0; j < kVectorDim; ++j, ++many) of_samples += std::pow(s.x[i * kVectorDim + j], 2);
  if (of_book == 0 || of_samples == 0) return 1;
  double scale = std::sqrt(of_samples / many / of_book);
  std::vector<float> norm(static_cast<size_t>(book.entries()));
  for (int round = 0; round < kScaleRounds; ++round) {
    double both = 0, square = 0;
    for (int64_t i = 0; i < s.size(); ++i) {
      const float* metric = s.metrics.data() + int64_t{s.place[i]} * kVectorDim;
      float x[kVectorDim], q[kVectorDim];
      for (int64_t j = 0; j < kVectorDim; ++j) x[j] = static_cast<float>(s.x[i * kVectorDim + j] / scale);
      book.norms(metric, norm.data());
      book.decode(book.nearest(x, metric, norm.data()), q);
      for (int64_t j = 0; j < kVectorDim; ++j) {
        both += double{s.weight[i]} * metric[j] * x[j] * q[j];
        square += double{s.weight[i]} * metric[j] * q[j] * q[j];
      }
    }
    if (both > 0) scale *= both / square;
  }
  return static_cast<float>(scale);
}

VectorBook shared_book(const VectorShape& shape, const OwnedTensor& codebook) {
  VectorBook book(shape.entries, shape.signs);
  const auto levels = codebook.as<const int8_t>();
  for (int64_t i = 0; i < shape.entries * kVectorDim; ++i)
    book.at(i / kVectorDim, i % kVectorDim) = static_cast<float>(levels[i]);
  return book;
}

void mark_corrections(std::span<const float> cost, int64_t sparse, std::span<uint8_t> corrected) {
  std::vector<float> order(cost.begin(), cost.end());
  std::nth_element(order.begin(), order.begin() + (sparse - 1), order.end(), std::greater<>());
  const float least = order[static_cast<size_t>(sparse - 1)];
  for (size_t i = 0; i < cost.size(); ++i)
    if (cost[i] > least) corrected[i] = 1, --sparse;
  for (size_t i = 0; sparse > 0 && i < cost.size(); ++i)
    if (cost[i] == least) corrected[i] = 1, --sparse;
}

LinearWeight to_weight(const FormatSpec& spec, const VectorWork& k) {
  LinearWeight weight = allocate_weight(spec, k.shape.out, k.shape.in);
  auto& m = std::get<SignedVectors>(weight.main);
  const int64_t V = k.shape.vectors;
  std::vector<int64_t> place(static_cast<size_t>(V));
  for (int64_t i = 0; i < V; ++i) place[k.vector[i]] = i;
  if (k.shared) m.codebook = *k.shared;
  for (int64_t b = 0; !k.shared && b < k.shape.blocks; ++b)
    for (int64_t i = 0; i < k.shape.entries * kVectorDim; ++i)
      m.codebook.as<int8_t>()[b * k.shape.entries * kVectorDim + i] =
          static_cast<int8_t>(k.books[b].at(i / kVectorDim, i % kVectorDim));
  for (int64_t i = 0; i < k.padded; ++i)
    if (k.column_of(i) < k.shape.in) m.column_scale.as<f16>()[k.column_of(i)] = to_f16(k.column[i]);
  int64_t sparse = 0;
  for (int64_t r = 0; r < k.shape.out; ++r) {
    m.row_scale.as<f16>()[r] = to_f16(k.row[r]);
    for (int64_t v = 0; v < V; ++v) {
      const int64_t at = r * V + place[v];
      set_vector(m, r, v, k.code[at]);
      if (!k.corrected[at]) continue;
      ++m.sparse_count.as<uint16_t>()[r];
      m.sparse_index.as<uint16_t>()[sparse] = static_cast<uint16_t>(v);
      m.sparse_scale.as<f16>()[sparse] = k.correction[at].scale;
      std::copy_n(k.correction[at].value, kVectorDim, &m.sparse_value.as<int8_t>()[sparse * kVectorDim]);
      ++sparse;
    }
  }
  return weight;
}

}  // namespace fidelio
