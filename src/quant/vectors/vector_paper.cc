// This file has the steps of the paper's own algorithm for vector codes: salience, corrections and their shares.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "quant/vectors/vector_work.h"

namespace fidelio {
namespace {

// In the paper's table 9, shares of outliers, of salient vectors and of residuals overlap; one share of each makes
// 2.23 shares together.
constexpr double kUnion = 2.23;

// Returns the salience S of every vector, which is the sum over its columns of the mean squared input times the mean
// absolute gradient (equations 4 and 5).
std::vector<float> salience_of(const VectorWork& k, std::span<const float> gradient) {
  std::vector<float> salience(k.corrected.size(), 0.0f);
  for (int64_t r = 0; r < k.shape.out; ++r)
    for (int64_t i = 0; i < k.padded; ++i) {
      const int64_t c = k.column_of(i);
      if (c < k.shape.in) salience[r * k.shape.vectors + i / kVectorDim] += k.price[i] * gradient[r * k.shape.in + c];
    }
  return salience;
}

// Marks the `count` vectors that have the largest `score` and are not marked yet.
void mark_largest(const std::vector<float>& score, int64_t count, std::vector<uint8_t>& marked) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < static_cast<int64_t>(score.size()); ++i)
    if (!marked[i]) order.push_back(i);
  count = std::min(count, static_cast<int64_t>(order.size()));
  if (count <= 0) return;
  std::nth_element(order.begin(), order.begin() + (count - 1), order.end(),
                   [&](int64_t a, int64_t b) { return score[a] != score[b] ? score[a] > score[b] : a < b; });
  for (int64_t i = 0; i < count; ++i) marked[order[i]] = 1;
}

// Computes x of a vector in the normalised domain. It is zero if the vector is corrected separately.
void normalised(const VectorWork& k, int64_t r, int64_t v, float* x) {
  const bool out = k.corrected[r * k.shape.vectors + v] != 0 || k.row[r] == 0;
  for (int64_t j = 0; j < kVectorDim; ++j) {
    const int64_t i = v * kVectorDim + j;
    x[j] = out ? 0.0f : k.w[r * k.padded + i] / (k.row[r] * k.column[i]);
  }
}

void fit_weighted_books(VectorWork& k, std::span<const float> salience, bool weighted, std::span<const float> plain,
                        ThreadPool& pool) {
  for (int64_t b = 0; b < k.shape.blocks; ++b) {
    VectorSamples s;
    s.metrics = plain;
    for (int64_t r = k.shape.first_row(b); r < k.shape.first_row(b + 1); ++r)
      for (int64_t v = 0; v < k.shape.vectors; ++v) {
        s.x.resize(s.x.size() + kVectorDim);
        normalised(k, r, v, s.x.data() + s.x.size() - kVectorDim);
        s.weight.push_back(weighted ? salience[r * k.shape.vectors + v] : 1.0f);
        s.place.push_back(0);
      }
    float scale = 1;
    k.books.push_back(fit_vector_book(s, k.shape.entries, k.shape.signs, pool, &scale));
    // The centroid of the vectors that are corrected separately.
    for (int64_t j = 0; j < kVectorDim; ++j) k.books[b].at(0, j) = 0;
    k.book_scale.push_back(scale);
  }
}

// Chooses the nearest centroid of every vector in plain distance. Returns |W - Q|^2 in the normalised domain.
std::vector<float> choose_nearest(VectorWork& k, std::span<const float> plain, ThreadPool& pool) {
  std::vector<float> distance(k.corrected.size());
  over_rows(k.shape, pool, [&](int64_t block, int64_t first, int64_t last) {
    const VectorBook& book = k.books[block];
    std::vector<float> norm(static_cast<size_t>(book.entries()));
    book.norms(plain.data(), norm.data());
    for (int64_t r = first; r < last; ++r)
      for (int64_t v = 0; v < k.shape.vectors; ++v) {
        const int64_t at = r * k.shape.vectors + v;
        float x[kVectorDim], q[kVectorDim], sum = 0;
        normalised(k, r, v, x);
        for (float& value : x) value /= k.book_scale[block];
        k.code[at] = book.nearest(x, plain.data(), norm.data());
        book.decode(k.code[at], q);
        for (int64_t j = 0; j < kVectorDim; ++j) sum += (x[j] - q[j]) * (x[j] - q[j]);
        distance[at] = sum * k.book_scale[block] * k.book_scale[block];
        for (int64_t j = 0; j < kVectorDim; ++j) {
          const int64_t i = v * kVectorDim + j;
          k.done[r * k.padded + i] = k.row[r] * k.book_scale[block] * k.column[i] * q[j];
        }
      }
  });
  return distance;
}

}  // namespace

void quantise_as_paper(VectorWork& k, std::span<const float> gradient, const VectorPaper& how, ThreadPool& pool) {
  const std::vector<float> salience = salience_of(k, gradient), plain(kVectorDim, 1.0f);
  std::vector<float> norm(salience.size());
  for (int64_t r = 0; r < k.shape.out; ++r)
    for (int64_t v = 0; v < k.shape.vectors; ++v) {
      float x[kVectorDim], sum = 0;
      normalised(k, r, v, x);
      for (const float value : x) sum += value * value;
      norm[r * k.shape.vectors + v] = sum;
    }
  // Without residuals, the two other kinds take their place in the file.
  const int kinds = (how.outliers ? 1 : 0) + (how.salient ? 1 : 0);
  const auto each = static_cast<int64_t>(how.residuals || kinds == 0 ? static_cast<double>(k.shape.sparse) / kUnion
                                                                     : static_cast<double>(k.shape.sparse) / kinds);
  std::vector<uint8_t> salient(k.corrected.size(), 0);
  if (how.salient) mark_largest(salience, each, salient);
  if (how.outliers) mark_largest(norm, each, k.corrected);
  for (size_t i = 0; i < salient.size(); ++i) k.corrected[i] |= salient[i];
  k.code.resize(k.corrected.size());
  fit_weighted_books(k, salience, how.weighted, plain, pool);
  std::vector<float> rank = choose_nearest(k, plain, pool);
  for (size_t i = 0; i < rank.size(); ++i) rank[i] *= std::pow(salience[i], how.alpha);
  const int64_t left = k.shape.sparse - std::count(k.corrected.begin(), k.corrected.end(), uint8_t{1});
  mark_largest(how.residuals ? rank : how.outliers ? norm : salience, left, k.corrected);
  for (int64_t r = 0; r < k.shape.out; ++r) {
    const float scale = k.book_scale[k.shape.block_of(r)];
    k.row[r] = k.row[r] == 0 ? 0.0f : stored_scale(double{k.row[r]} * scale);
  }
  k.correction.resize(k.shape.sparse > 0 ? k.corrected.size() : 0);
  for (int64_t at = 0; k.shape.sparse > 0 && at < static_cast<int64_t>(k.corrected.size()); ++at) {
    if (!k.corrected[at]) continue;
    const int64_t r = at / k.shape.vectors, first = at % k.shape.vectors * kVectorDim;
    float error[kVectorDim], q[kVectorDim];
    k.book_of(r).decode(k.code[at], q);
    for (int64_t j = 0; j < kVectorDim; ++j)
      error[j] = k.w[r * k.padded + first + j] - k.row[r] * k.column[first + j] * q[j];
    k.correction[at] = correct(error);
  }
}

}  // namespace fidelio
