// This file fits the codebook of a block of a vector code: k-means weighted by salience, under the format's sign
// symmetry, rounded to bytes.
//
// It departs from SCVQ in these. SCVQ tests how symmetric each of the eight axes is (Kolmogorov and Smirnov) and gives
// the most symmetric ones a sign each. Here the signs of a format are fixed: one negates the whole vector, four negate
// pairs of axes, and eight negate every axis. SCVQ has a scale for each centroid, and here a codebook has one.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "formats/vector_code.h"

namespace fidelio {

// A VectorBook stores entry j of all centroids side by side, so that centroids are the lanes of plain loops in the
// search.
class VectorBook {
 public:
  VectorBook(int64_t entries, int signs);
  int64_t entries() const { return entries_; }
  int signs() const { return signs_; }
  float& at(int64_t index, int64_t j) { return values_[j * entries_ + index]; }
  float at(int64_t index, int64_t j) const { return values_[j * entries_ + index]; }

  // Computes norm (entries), sum_j metric[j] b_j^2, which nearest() needs for a metric (8).
  void norms(const float* metric, float* norm) const;
  // Returns the centroid and signs that minimise sum_j metric[j] (x[j] -+ b_j)^2, and the lowest index among equals.
  VectorChoice nearest(const float* x, const float* metric, const float* norm) const;
  // Writes the eight values +-b_j of a choice.
  void decode(VectorChoice choice, float* values) const;

 private:
  int64_t entries_;
  int signs_;
  std::vector<float> values_;  // (8, entries)
};

// VectorSamples holds vectors to be clustered: x (n, 8), each with the metric of its place (metrics + 8 * place)
// times `weight`. Samples of one place are neighbours.
struct VectorSamples {
  std::vector<float> x, weight;
  std::vector<int32_t> place;
  std::span<const float> metrics;
  int64_t size() const { return static_cast<int64_t>(weight.size()); }
};

// Runs k-means++ (Arthur and Vassilvitskii 2007) and Lloyd's iterations. At the end centroids are rounded to whole
// numbers in [-127, 127], which stand for multiples of *scale. The result is the same for any number of threads.
VectorBook fit_vector_book(const VectorSamples& samples, int64_t entries, int signs, ThreadPool& pool, float* scale);

}  // namespace fidelio
