// This file lowers the loss of a matrix in vector codes: it chooses codes again one at a time, and fits scales and
// codebooks by least squares.
#include <algorithm>
#include <cmath>
#include <optional>

#include "quant/algebra/products.h"
#include "quant/vectors/vector_work.h"

namespace fidelio {
namespace {

constexpr int kConjugateSteps = 4, kBookPasses = 3;

struct Strip {
  int64_t first = 0, rows = 0, n = 0;
  std::vector<float> error, gradient;  // (rows, n): E = W - Q and E H
};

void times_h(std::span<const float> a, int64_t rows, int64_t n, std::span<const float> h, std::vector<float>& product) {
  product.resize(static_cast<size_t>(rows * n));
  fidelio::multiply<float>(rows, n, n, 1, {a.data(), n}, {h.data(), n}, false, product.data(), n);
}

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

// Writes +-codebook entries of row r in working order, as whole numbers (padded).
void levels_of(const VectorWork& k, int64_t r, float* levels) {
  const VectorBook& book = k.book_of(r);
  for (int64_t v = 0; v < k.shape.vectors; ++v) book.decode(k.code[r * k.shape.vectors + v], levels + v * kVectorDim);
}

// Computes `done` of row r from its codes, scales and corrections.
void decode_row(VectorWork& k, int64_t r, float* levels) {
  levels_of(k, r, levels);
  float* done = &k.done[r * k.padded];
  for (int64_t i = 0; i < k.padded; ++i) done[i] = k.row[r] * k.column[i] * levels[i];
  if (k.correction.empty()) return;
  for (int64_t v = 0; v < k.shape.vectors; ++v) {
    const int64_t at = r * k.shape.vectors + v;
    if (!k.corrected[at]) continue;
    for (int64_t j = 0; j < kVectorDim; ++j) done[v * kVectorDim + j] += k.correction[at].at(j);
  }
}

Strip strip_of(const VectorWork& k, std::span<const float> h, int64_t first, int64_t last) {
  Strip s{.first = first, .rows = last - first, .n = k.padded, .error = {}, .gradient = {}};
  s.error.resize(static_cast<size_t>(s.rows * s.n));
  for (int64_t i = 0; i < s.rows * s.n; ++i) s.error[i] = k.w[first * s.n + i] - k.done[first * s.n + i];
  times_h(s.error, s.rows, s.n, h, s.gradient);
  return s;
}

// Decodes `done` anew and returns the loss of each block.
std::vector<double> decode_all(VectorWork& k, std::span<const float> h, ThreadPool& pool) {
  std::vector<double> of_row(static_cast<size_t>(k.shape.out));
  over_rows(k.shape, pool, [&](int64_t, int64_t first, int64_t last) {
    std::vector<float> levels(static_cast<size_t>(k.padded));
    for (int64_t r = first; r < last; ++r) decode_row(k, r, levels.data());
    const Strip s = strip_of(k, h, first, last);
    for (int64_t r = 0; r < s.rows; ++r) of_row[first + r] = dot(&s.error[r * s.n], &s.gradient[r * s.n], s.n);
  });
  std::vector<double> loss(static_cast<size_t>(k.shape.blocks));
  for (int64_t b = 0; b < k.shape.blocks; ++b)
    for (int64_t r = k.shape.first_row(b); r < k.shape.first_row(b + 1); ++r) loss[b] += of_row[r];
  return loss;
}

// Terms describe values in which the decoded weight is linear: element i of row r is factor[i] times value[index[i]].
struct Terms {
  std::vector<int32_t> index;
  std::vector<float> factor;
};
using TermsOf = std::function<void(int64_t row, Terms&)>;

// Returns the changes of `values` that minimise the loss over rows [first, last). It runs conjugate gradients on the
// normal equations, with each value in units of its own curvature.
std::vector<double> conjugate(const VectorWork& k, std::span<const float> h, int64_t first, int64_t last,
                              int64_t values, const TermsOf& terms_of, ThreadPool& pool) {
  const int64_t n = k.padded, jobs = (last - first + kVectorRows - 1) / kVectorRows;
  // Sums factor x by value, over rows and elements. Here x is what `rows_of` returns, times H.
  const auto gather = [&](const auto& rows_of, bool squared) {
    std::vector<std::vector<double>> parts(static_cast<size_t>(jobs));
    pool.run(jobs, [&](int64_t job, int) {
      const int64_t begin = first + job * kVectorRows, rows = std::min(kVectorRows, last - begin);
      std::vector<float> a(static_cast<size_t>(rows * n)), b;
      Terms terms{std::vector<int32_t>(static_cast<size_t>(n)), std::vector<float>(static_cast<size_t>(n))};
      if (!squared) {
        for (int64_t r = 0; r < rows; ++r) {
          terms_of(begin + r, terms);
          rows_of(begin + r, terms, &a[r * n]);
        }
        times_h(a, rows, n, h, b);
      }
      auto& sum = parts[job];
      sum.assign(static_cast<size_t>(values), 0.0);
      for (int64_t r = 0; r < rows; ++r) {
        terms_of(begin + r, terms);
        for (int64_t i = 0; i < n; ++i) {
          const double f = terms.factor[i];
          sum[terms.index[i]] += f * (squared ? f * double{h[i * n + i]} : double{b[r * n + i]});
        }
      }
    });
    std::vector<double> sum(static_cast<size_t>(values));
    for (const auto& part : parts)
      for (int64_t i = 0; i < values; ++i) sum[i] += part[i];
    return sum;
  };
  const std::vector<double> curvature = gather([](int64_t, const Terms&, float*) {}, true);
  std::vector<double> left = gather(
      [&](int64_t r, const Terms&, float* to) {
        for (int64_t i = 0; i < n; ++i) to[i] = k.w[r * n + i] - k.done[r * n + i];
      },
      false);
  std::vector<double> change(static_cast<size_t>(values)), z(change.size()), p;
  double before = 0;
  for (int step = 0; step < kConjugateSteps; ++step) {
    double now = 0;
    for (int64_t i = 0; i < values; ++i) {
      z[i] = curvature[i] > 0 ? left[i] / curvature[i] : 0;
      now += z[i] * left[i];
    }
    if (!(now > 0)) break;
    if (p.empty()) p = z;
    if (step > 0)
      for (int64_t i = 0; i < values; ++i) p[i] = z[i] + now / before * p[i];
    before = now;
    const std::vector<double> bent = gather(
        [&](int64_t, const Terms& terms, float* to) {
          for (int64_t i = 0; i < n; ++i) to[i] = terms.factor[i] * static_cast<float>(p[terms.index[i]]);
        },
        false);
    double along = 0;
    for (int64_t i = 0; i < values; ++i) along += p[i] * bent[i];
    if (!(along > 0)) break;
    for (int64_t i = 0; i < values; ++i) {
      change[i] += now / along * p[i];
      left[i] -= now / along * bent[i];
    }
  }
  return change;
}

// Fits the column scales. `loss` holds the loss by block, before and after.
void refit_columns(VectorWork& k, std::span<const float> h, std::vector<double>& loss, ThreadPool& pool) {
  const std::vector<double> change = conjugate(
      k, h, 0, k.shape.out, k.padded,
      [&](int64_t r, Terms& terms) {
        levels_of(k, r, terms.factor.data());
        for (int64_t i = 0; i < k.padded; ++i) {
          terms.index[i] = static_cast<int32_t>(i);
          terms.factor[i] *= k.row[r];
        }
      },
      pool);
  const std::vector<float> column = k.column, done = k.done;
  for (int64_t i = 0; i < k.padded; ++i)
    k.column[i] = stored_scale(std::clamp(k.column[i] + change[i], 0.5 * k.column[i], 2.0 * k.column[i]));
  const std::vector<double> made = decode_all(k, h, pool);
  double before = 0, after = 0;
  for (size_t b = 0; b < loss.size(); ++b) before += loss[b], after += made[b];
  if (after < before) {
    loss = made;
  } else {
    k.column = column, k.done = done;
  }
}

// Fits the codebook of each block, rounded to whole numbers of which the largest is 127.
void refit_books(VectorWork& k, std::span<const float> h, std::vector<double>& loss, ThreadPool& pool) {
  const std::vector<VectorBook> books = k.books;
  const std::vector<float> row = k.row;
  for (int64_t b = 0; b < k.shape.blocks; ++b) {
    const int64_t first = k.shape.first_row(b), last = k.shape.first_row(b + 1);
    VectorBook& book = k.books[b];
    const std::vector<double> change = conjugate(
        k, h, first, last, book.entries() * kVectorDim,
        [&](int64_t r, Terms& terms) {
          for (int64_t i = 0; i < k.padded; ++i) {
            const VectorChoice c = k.code[r * k.shape.vectors + i / kVectorDim];
            const bool negative = spread_signs(k.shape.signs, c.signs) >> (i % kVectorDim) & 1;
            terms.index[i] = static_cast<int32_t>(c.index * kVectorDim + i % kVectorDim);
            terms.factor[i] = k.row[r] * k.column[i] * (negative ? -1.0f : 1.0f);
          }
        },
        pool);
    double largest = 0;
    for (int64_t i = 0; i < book.entries() * kVectorDim; ++i)
      largest = std::max(largest, std::fabs(book.at(i / kVectorDim, i % kVectorDim) + change[i]));
    if (largest == 0) continue;
    for (int64_t i = 0; i < book.entries() * kVectorDim; ++i) {
      float& value = book.at(i / kVectorDim, i % kVectorDim);
      value = static_cast<float>(std::nearbyint((value + change[i]) * 127 / largest));
    }
    for (int64_t r = first; r < last; ++r)
      if (k.row[r] > 0) k.row[r] = stored_scale(k.row[r] * largest / 127);
  }
  const std::vector<double> made = decode_all(k, h, pool);
  for (int64_t b = 0; b < k.shape.blocks; ++b) {
    if (made[b] < loss[b]) {
      loss[b] = made[b];
      continue;
    }
    k.books[b] = books[b];
    std::vector<float> levels(static_cast<size_t>(k.padded));
    for (int64_t r = k.shape.first_row(b); r < k.shape.first_row(b + 1); ++r) {
      k.row[r] = row[r];
      decode_row(k, r, levels.data());
    }
  }
}

// Inverts H_vv (8 x 8) plus a small multiple of the identity, by Gauss-Jordan elimination. Columns that no token uses
// are left as they are.
void invert(const float* h, int64_t n, double* inverse) {
  constexpr int64_t d = kVectorDim;
  double a[d][2 * d] = {}, mean = 0;
  for (int64_t i = 0; i < d; ++i) mean += double{h[i * n + i]} / d;
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) a[i][j] = double{h[i * n + j]} + (i == j ? 1e-6 * mean + 1e-30 : 0);
    a[i][d + i] = h[i * n + i] > 0 ? 1 : 0;
  }
  for (int64_t p = 0; p < d; ++p) {
    const double by = 1 / a[p][p];
    for (double& x : a[p]) x *= by;
    for (int64_t i = 0; i < d; ++i) {
      const double f = a[i][p];
      if (i == p || f == 0) continue;
      for (int64_t j = 0; j < 2 * d; ++j) a[i][j] -= f * a[p][j];
    }
  }
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = 0; j < d; ++j) inverse[i * d + j] = a[i][d + j];
}

// Returns how much the loss of a row changes if its vector moves by `step`: step H_vv step - 2 g step.
double changed(const float* h, int64_t n, const float* g, const float* step) {
  double sum = 0;
  for (int64_t i = 0; i < kVectorDim; ++i) {
    double bent = 0;
    for (int64_t j = 0; j < kVectorDim; ++j) bent += double{h[i * n + j]} * double{step[j]};
    sum += double{step[i]} * (bent - 2 * double{g[i]});
  }
  return sum;
}

// Chooses one vector of one row again, against the error that all others leave. Returns true if it moved, with the
// step in `step`.
bool choose_again(VectorWork& k, const VectorBook& book, const float* h, const double* inverse, const float* metric,
                  const float* norm, int64_t r, int64_t v, const float* g, float* step) {
  const int64_t at = r * k.shape.vectors + v;
  float* done = &k.done[r * k.padded + v * kVectorDim];
  const float* column = &k.column[v * kVectorDim];
  float want[kVectorDim], x[kVectorDim], q[kVectorDim];
  for (int64_t j = 0; j < kVectorDim; ++j) {
    double by = 0;
    for (int64_t i = 0; i < kVectorDim; ++i) by += inverse[j * kVectorDim + i] * double{g[i]};
    want[j] = static_cast<float>(done[j] + by);
    x[j] = want[j] / (k.row[r] * column[j]);
  }
  const VectorChoice choice = book.nearest(x, metric, norm);
  const bool corrected = k.corrected[at] != 0;
  if (choice == k.code[at] && !corrected) return false;
  book.decode(choice, q);
  VectorCorrection correction;
  for (int64_t j = 0; j < kVectorDim; ++j) q[j] *= k.row[r] * column[j];
  if (corrected) {
    for (int64_t j = 0; j < kVectorDim; ++j) x[j] = want[j] - q[j];
    correction = correct(x);
    for (int64_t j = 0; j < kVectorDim; ++j) q[j] += correction.at(j);
  }
  for (int64_t j = 0; j < kVectorDim; ++j) step[j] = q[j] - done[j];
  if (!(changed(h, k.padded, g, step) < 0)) return false;
  k.code[at] = choice;
  if (corrected) k.correction[at] = correction;
  std::copy_n(q, kVectorDim, done);
  return true;
}

// Chooses every vector of the strip once more, in working order.
void descend_codes(VectorWork& k, int64_t block, std::span<const float> h, Strip& s) {
  const VectorBook& book = k.books[block];
  const int64_t n = s.n;
  std::vector<float> norm(static_cast<size_t>(book.entries())), steps(static_cast<size_t>(s.rows * kVectorDim));
  std::vector<int64_t> moved;
  for (int64_t v = 0; v < k.shape.vectors; ++v) {
    const float* here = &h[v * kVectorDim * n + v * kVectorDim];
    float metric[kVectorDim];
    double inverse[kVectorDim * kVectorDim];
    for (int64_t j = 0; j < kVectorDim; ++j)
      metric[j] = here[j * n + j] * k.column[v * kVectorDim + j] * k.column[v * kVectorDim + j];
    book.norms(metric, norm.data());
    invert(here, n, inverse);
    moved.clear();
    for (int64_t r = 0; r < s.rows; ++r) {
      if (k.row[s.first + r] == 0) continue;
      float* step = &steps[static_cast<int64_t>(moved.size()) * kVectorDim];
      if (choose_again(k, book, here, inverse, metric, norm.data(), s.first + r, v, &s.gradient[r * n + v * kVectorDim],
                       step))
        moved.push_back(r);
    }
    // This computes E -= step and E H -= step H_v.
    for (size_t i = 0; i < moved.size(); ++i) {
      const float* step = &steps[i * kVectorDim];
      float* gradient = &s.gradient[moved[i] * n];
      const float* rows[kVectorDim];
      for (int64_t j = 0; j < kVectorDim; ++j) {
        rows[j] = &h[(v * kVectorDim + j) * n];
        s.error[moved[i] * n + v * kVectorDim + j] -= step[j];
      }
      for (int64_t c = 0; c < n; ++c)
        gradient[c] -= ((step[0] * rows[0][c] + step[1] * rows[1][c]) + (step[2] * rows[2][c] + step[3] * rows[3][c])) +
                       ((step[4] * rows[4][c] + step[5] * rows[5][c]) + (step[6] * rows[6][c] + step[7] * rows[7][c]));
    }
  }
}

// Fits the row scale that minimises the loss for the present codes. With m as the codes' part of the row, the scale
// changes by (E H) m / (m H m) of itself.
void refit_rows(VectorWork& k, std::span<const float> h, Strip& s) {
  const int64_t n = s.n;
  std::vector<float> main(s.error.size()), bent, levels(static_cast<size_t>(n));
  for (int64_t r = 0; r < s.rows; ++r) {
    levels_of(k, s.first + r, levels.data());
    for (int64_t i = 0; i < n; ++i) main[r * n + i] = k.row[s.first + r] * k.column[i] * levels[i];
  }
  times_h(main, s.rows, n, h, bent);
  for (int64_t r = 0; r < s.rows; ++r) {
    const double curve = dot(&bent[r * n], &main[r * n], n), slope = dot(&s.gradient[r * n], &main[r * n], n);
    float& scale = k.row[s.first + r];
    if (scale == 0 || !(curve > 0) || slope <= -curve) continue;  // a scale must stay positive
    const float wanted = stored_scale(scale * (1 + slope / curve));
    const double by = double{wanted} / scale - 1;
    if (!(by * by * curve - 2 * by * slope < 0)) continue;
    scale = wanted;
    decode_row(k, s.first + r, levels.data());
    for (int64_t i = 0; i < n; ++i) {
      s.error[r * n + i] -= static_cast<float>(by) * main[r * n + i];
      s.gradient[r * n + i] -= static_cast<float>(by) * bent[r * n + i];
    }
  }
}

}  // namespace

VectorLosses descend_vectors(VectorWork& k, std::span<const float> h, const VectorDescent& how, ThreadPool& pool) {
  std::vector<double> energy(static_cast<size_t>(k.shape.out)), of_row(energy.size());
  over_rows(k.shape, pool, [&](int64_t, int64_t first, int64_t last) {
    std::vector<float> bent;
    times_h(std::span(k.w).subspan(first * k.padded, (last - first) * k.padded), last - first, k.padded, h, bent);
    for (int64_t r = first; r < last; ++r) energy[r] = dot(&k.w[r * k.padded], &bent[(r - first) * k.padded], k.padded);
  });
  std::vector<double> loss = decode_all(k, h, pool);
  VectorLosses losses;
  for (const double x : energy) losses.energy += x;
  for (const double x : loss) losses.before += x;
  for (int pass = 0; pass < how.passes; ++pass) {
    // Column scales are fitted once, and codebooks as long as many codes still move.
    if (how.refit && pass == 0) refit_columns(k, h, loss, pool);
    if (how.refit && !k.shared && pass < kBookPasses) refit_books(k, h, loss, pool);
    over_rows(k.shape, pool, [&](int64_t block, int64_t first, int64_t last) {
      Strip s = strip_of(k, h, first, last);
      if (how.codes) descend_codes(k, block, h, s);
      if (how.refit) refit_rows(k, h, s);
    });
    loss = decode_all(k, h, pool);
  }
  for (const double x : loss) losses.after += x;
  return losses;
}

}  // namespace fidelio
