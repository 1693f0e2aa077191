#include "quant/vectors/vector_book.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/rng.h"
#include "quant/wide.h"

namespace fidelio {
namespace {

constexpr int64_t kWide = 16;  // centroids that are compared at a time; codebooks have 256 or more
constexpr int kIterations = 16;
constexpr int64_t kJob = 512;  // samples of a job

template <int kSigns>
inline float agreement(const float* t, const float* book, int64_t entries, int64_t k) {
  float p[kVectorDim];
  for (int j = 0; j < kVectorDim; ++j) p[j] = t[j] * book[j * entries + k];
  if constexpr (kSigns == 8) {
    float sum = 0;
    for (int j = 0; j < kVectorDim; ++j) sum += std::fabs(p[j]);
    return sum;
  } else if constexpr (kSigns == 4) {
    return (std::fabs(p[0] + p[1]) + std::fabs(p[2] + p[3])) + (std::fabs(p[4] + p[5]) + std::fabs(p[6] + p[7]));
  } else {
    return std::fabs(((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7])));
  }
}

template <int kSigns>
inline __attribute__((always_inline)) int32_t search(const float* t, const float* book, const float* norm,
                                                     int64_t entries) {
  float best[kWide];
  int32_t index[kWide];
  for (int64_t l = 0; l < kWide; ++l) {
    best[l] = std::numeric_limits<float>::max();
    index[l] = static_cast<int32_t>(l);
  }
  for (int64_t k = 0; k < entries; k += kWide)
    for (int64_t l = 0; l < kWide; ++l) {
      const float score = norm[k + l] - 2 * agreement<kSigns>(t, book, entries, k + l);
      const bool better = score < best[l];
      best[l] = better ? score : best[l];
      index[l] = better ? static_cast<int32_t>(k + l) : index[l];
    }
  int64_t winner = 0;
  for (int64_t l = 1; l < kWide; ++l)
    if (best[l] < best[winner] || (best[l] == best[winner] && index[l] < index[winner])) winner = l;
  return index[winner];
}

FIDELIO_WIDE int32_t search1(const float* t, const float* book, const float* norm, int64_t entries) {
  return search<1>(t, book, norm, entries);
}
FIDELIO_WIDE int32_t search4(const float* t, const float* book, const float* norm, int64_t entries) {
  return search<4>(t, book, norm, entries);
}
FIDELIO_WIDE int32_t search8(const float* t, const float* book, const float* norm, int64_t entries) {
  return search<8>(t, book, norm, entries);
}

// Calls f(sample, choice) with the nearest centroid of each sample. Several threads call f, with different samples.
template <typename F>
void assign(const VectorSamples& s, const VectorBook& book, ThreadPool& pool, const F& f) {
  pool.run((s.size() + kJob - 1) / kJob, [&](int64_t job, int) {
    std::vector<float> norm(static_cast<size_t>(book.entries()));
    int32_t place = -1;
    for (int64_t i = job * kJob; i < std::min(s.size(), (job + 1) * kJob); ++i) {
      const float* metric = s.metrics.data() + int64_t{s.place[i]} * kVectorDim;
      if (s.place[i] != place) book.norms(metric, norm.data());
      place = s.place[i];
      f(i, book.nearest(&s.x[i * kVectorDim], metric, norm.data()));
    }
  });
}

// Returns the weighted squared distance of a sample to +-centroid `index`.
double distance(const VectorSamples& s, int64_t i, const VectorBook& book, int64_t index) {
  const float* metric = s.metrics.data() + int64_t{s.place[i]} * kVectorDim;
  const float* x = &s.x[i * kVectorDim];
  const int64_t span = kVectorDim / book.signs();
  double sum = 0;
  for (int64_t g = 0; g < kVectorDim; g += span) {
    double plus = 0, minus = 0;
    for (int64_t j = g; j < g + span; ++j) {
      const double b = static_cast<double>(book.at(index, j));
      plus += metric[j] * (x[j] - b) * (x[j] - b);
      minus += metric[j] * (x[j] + b) * (x[j] + b);
    }
    sum += std::min(plus, minus);
  }
  return sum * s.weight[i];
}

void set_centroid(VectorBook& book, int64_t index, const float* x) {
  for (int64_t j = 0; j < kVectorDim; ++j) book.at(index, j) = book.signs() == 8 ? std::fabs(x[j]) : x[j];
}

VectorBook seed(const VectorSamples& s, int64_t entries, int signs, ThreadPool& pool) {
  VectorBook book(entries, signs);
  Rng rng(1, static_cast<uint64_t>(entries));
  std::vector<double> nearest(static_cast<size_t>(s.size()), std::numeric_limits<double>::max());
  int64_t chosen = static_cast<int64_t>(rng.below(static_cast<uint64_t>(s.size())));
  for (int64_t k = 0; k < entries; ++k) {
    set_centroid(book, k, &s.x[chosen * kVectorDim]);
    pool.run((s.size() + 4 * kJob - 1) / (4 * kJob), [&](int64_t job, int) {
      for (int64_t i = job * 4 * kJob; i < std::min(s.size(), (job + 1) * 4 * kJob); ++i)
        nearest[i] = std::min(nearest[i], distance(s, i, book, k));
    });
    double total = 0;
    for (const double d : nearest) total += d;
    double mark = rng.uniform() * total;
    for (chosen = 0; chosen + 1 < s.size() && (mark -= nearest[chosen]) > 0;) ++chosen;
  }
  return book;
}

// Runs one of Lloyd's iterations. Centroids that no sample chose stay where they are.
double iterate(const VectorSamples& s, VectorBook& book, ThreadPool& pool) {
  std::vector<VectorChoice> choice(static_cast<size_t>(s.size()));
  assign(s, book, pool, [&](int64_t i, VectorChoice c) { choice[i] = c; });
  std::vector<double> sum(static_cast<size_t>(book.entries() * kVectorDim)), mass(sum.size());
  double loss = 0;
  for (int64_t i = 0; i < s.size(); ++i) {
    const float* metric = s.metrics.data() + int64_t{s.place[i]} * kVectorDim;
    const uint8_t negative = spread_signs(book.signs(), choice[i].signs);
    loss += distance(s, i, book, choice[i].index);
    for (int64_t j = 0; j < kVectorDim; ++j) {
      const double weight = static_cast<double>(metric[j]) * s.weight[i];
      const double x = s.x[i * kVectorDim + j];
      sum[choice[i].index * kVectorDim + j] += weight * (negative >> j & 1 ? -x : x);
      mass[choice[i].index * kVectorDim + j] += weight;
    }
  }
  for (int64_t k = 0; k < book.entries(); ++k)
    for (int64_t j = 0; j < kVectorDim; ++j)
      if (mass[k * kVectorDim + j] > 0)
        book.at(k, j) = static_cast<float>(sum[k * kVectorDim + j] / mass[k * kVectorDim + j]);
  return loss;
}

}  // namespace

VectorBook::VectorBook(int64_t entries, int signs)
    : entries_(entries), signs_(signs), values_(static_cast<size_t>(entries * kVectorDim), 0.0f) {}

void VectorBook::norms(const float* metric, float* norm) const {
  std::fill_n(norm, entries_, 0.0f);
  for (int64_t j = 0; j < kVectorDim; ++j)
    for (int64_t k = 0; k < entries_; ++k) norm[k] += metric[j] * values_[j * entries_ + k] * values_[j * entries_ + k];
}

VectorChoice VectorBook::nearest(const float* x, const float* metric, const float* norm) const {
  float t[kVectorDim];
  for (int64_t j = 0; j < kVectorDim; ++j) t[j] = metric[j] * x[j];
  const auto find = signs_ == 8 ? search8 : signs_ == 4 ? search4 : search1;
  VectorChoice choice{.index = find(t, values_.data(), norm, entries_)};
  const int64_t span = kVectorDim / signs_;
  for (int64_t g = 0; g < signs_; ++g) {
    float sum = 0;
    for (int64_t j = g * span; j < (g + 1) * span; ++j) sum += t[j] * at(choice.index, j);
    if (sum < 0) choice.signs = static_cast<uint8_t>(choice.signs | 1 << g);
  }
  return choice;
}

void VectorBook::decode(VectorChoice choice, float* values) const {
  const uint8_t negative = spread_signs(signs_, choice.signs);
  for (int64_t j = 0; j < kVectorDim; ++j) values[j] = negative >> j & 1 ? -at(choice.index, j) : at(choice.index, j);
}

VectorBook fit_vector_book(const VectorSamples& samples, int64_t entries, int signs, ThreadPool& pool, float* scale) {
  VectorBook book = seed(samples, entries, signs, pool);
  double before = std::numeric_limits<double>::max();
  for (int i = 0; i < kIterations; ++i) {
    const double loss = iterate(samples, book, pool);
    if (loss > before * (1 - 1e-4)) break;
    before = loss;
  }
  float largest = 0;
  for (int64_t k = 0; k < entries; ++k)
    for (int64_t j = 0; j < kVectorDim; ++j) largest = std::max(largest, std::fabs(book.at(k, j)));
  *scale = largest > 0 ? largest / 127 : 1;
  for (int64_t k = 0; k < entries; ++k)
    for (int64_t j = 0; j < kVectorDim; ++j) book.at(k, j) = std::nearbyint(book.at(k, j) / *scale);
  return book;
}

}  // namespace fidelio
