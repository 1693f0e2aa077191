#include "quant/hessian.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "quant/algebra/products.h"

namespace fidelio {
namespace {

constexpr int64_t kTile = 128;     // tile of the FP64 factorisation
constexpr int64_t kSumTile = 256;  // tile of the accumulation
constexpr int64_t kTokens = 512;   // tokens summed in FP32 inside one product, so that any caller's batch rounds alike

int64_t tiles(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }

// Computes the Cholesky factor of one tile in place, lower triangle. Returns false if a pivot is not positive.
bool cholesky_tile(double* a, int64_t n, int64_t stride) {
  for (int64_t j = 0; j < n; ++j) {
    double pivot = a[j * stride + j];
    for (int64_t k = 0; k < j; ++k) pivot -= a[j * stride + k] * a[j * stride + k];
    if (!(pivot > 0)) return false;
    a[j * stride + j] = pivot = std::sqrt(pivot);
    for (int64_t i = j + 1; i < n; ++i) {
      double sum = a[i * stride + j];
      for (int64_t k = 0; k < j; ++k) sum -= a[i * stride + k] * a[j * stride + k];
      a[i * stride + j] = sum / pivot;
    }
  }
  return true;
}

// Computes the lower Cholesky factor of a (n, n), right-looking over tiles: the panel first, then the trailing tiles,
// each as one job.
bool cholesky(double* a, int64_t n, ThreadPool& pool) {
  const int64_t count = tiles(n, kTile);
  for (int64_t k = 0; k < count; ++k) {
    const int64_t begin = k * kTile, width = std::min(kTile, n - begin), below = count - k - 1;
    double* diagonal = a + begin * n + begin;
    if (!cholesky_tile(diagonal, width, n)) return false;
    pool.run(below, [&](int64_t i, int) {
      const int64_t row = begin + (i + 1) * kTile;
      solve_right(std::min(kTile, n - row), width, diagonal, n, a + row * n + begin, n);
    });
    pool.run(below * (below + 1) / 2, [&](int64_t job, int) {
      int64_t i = 0;
      while ((i + 1) * (i + 2) / 2 <= job) ++i;
      const int64_t j = job - i * (i + 1) / 2, row = begin + (i + 1) * kTile, column = begin + (j + 1) * kTile;
      multiply<double>(std::min(kTile, n - row), std::min(kTile, n - column), width, -1, {a + row * n + begin, n},
                       {a + column * n + begin, n, true}, true, a + row * n + column, n);
    });
  }
  return true;
}

struct Diagonal {
  double mean = 0;  // mean over the live columns
  int64_t dead = 0;
};

Diagonal inspect(const Hessian& h) {
  Diagonal d;
  const auto m = h.matrix();
  for (const float x : m)
    check(std::isfinite(x), "the Hessian has entries that are not finite; are the calibration activations?");
  for (int64_t i = 0; i < h.in(); ++i) {
    const float x = m[i * h.in() + i];
    check(x >= 0, "the Hessian's diagonal is {} at column {}; a sum of squares is not negative", x, i);
    d.mean += x;
    d.dead += x == 0;
  }
  if (d.dead < h.in()) d.mean /= static_cast<double>(h.in() - d.dead);
  return d;
}

// Fills the damped matrix with its rows and columns in the reverse order of the steps. Its lower Cholesky factor L,
// reversed again, is the upper R with H = R R^T, and R^-1 is the wanted U. This takes one factorisation and one
// triangular inverse. The usual way (Cholesky, inverse, Cholesky) takes three times as long and squares the condition
// number.
void fill_reversed(const Hessian& h, const HessianFactor& f, double damping, double* a) {
  const int64_t n = h.in();
  const auto m = h.matrix();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = f.order[n - 1 - i];
    for (int64_t j = 0; j <= i; ++j) a[i * n + j] = m[row * n + f.order[n - 1 - j]];
    a[i * n + i] = m[row * n + row] == 0 ? 1.0 : a[i * n + i] + damping;
  }
}

// Computes L^-1 by tiles of columns and reverses it into U.
void invert_into(const double* lower, int64_t n, float* upper, ThreadPool& pool) {
  pool.run(tiles(n, kTile), [&](int64_t tile, int) {
    const int64_t begin = tile * kTile, width = std::min(kTile, n - begin), height = n - begin;
    std::vector<double> x(static_cast<size_t>(height * width), 0.0);
    for (int64_t i = 0; i < width; ++i) x[i * width + i] = 1.0;
    solve_left(height, width, lower + begin * n + begin, n, x.data(), width);
    for (int64_t j = 0; j < width; ++j)
      for (int64_t i = j; i < height; ++i)
        upper[(n - 1 - begin - i) * n + (n - 1 - begin - j)] = static_cast<float>(x[i * width + j]);
  });
}

}  // namespace

Hessian::Hessian(int64_t in) : in_(in), sums_(static_cast<size_t>(in * in) * sizeof(float)) {}

Hessian Hessian::from_matrix(std::span<const float> matrix, int64_t in, int64_t tokens) {
  check(static_cast<int64_t>(matrix.size()) == in * in, "a Hessian of {} columns has {} entries, not {}", in, in * in,
        matrix.size());
  Hessian h(in);
  std::copy(matrix.begin(), matrix.end(), h.sums_.as<float>());
  h.tokens_ = tokens;
  return h;
}

void Hessian::add(std::span<const float> x, ThreadPool& pool) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / in_;
  check(tokens * in_ == static_cast<int64_t>(x.size()), "{} values are not rows of {} columns", x.size(), in_);
  const int64_t count = tiles(in_, kSumTile);
  pool.run(count * (count + 1) / 2, [&](int64_t job, int) {
    int64_t i = 0;
    while ((i + 1) * (i + 2) / 2 <= job) ++i;
    const int64_t row = i * kSumTile, column = (job - i * (i + 1) / 2) * kSumTile;
    const int64_t height = std::min(kSumTile, in_ - row), width = std::min(kSumTile, in_ - column);
    float* sums = sums_.as<float>();
    for (int64_t t = 0; t < tokens; t += kTokens)
      multiply<float>(height, width, std::min(kTokens, tokens - t), 1, {x.data() + t * in_ + row, in_, true},
                      {x.data() + t * in_ + column, in_}, true, sums + row * in_ + column, in_);
    for (int64_t r = row; r < row + height;
         ++r)  // mirrors the lower triangle; inside a diagonal tile both halves come from one side
      for (int64_t c = column; c < std::min(column + width, r); ++c) sums[c * in_ + r] = sums[r * in_ + c];
  });
  tokens_ += tokens;
}

HessianFactor factorize(const Hessian& h, double damping, bool act_order, ThreadPool& pool) {
  const int64_t n = h.in();
  const Diagonal diagonal = inspect(h);
  HessianFactor f{.in = n, .order = {}, .upper = {}, .weight = {}, .damping = damping, .dead = diagonal.dead};
  f.order.resize(static_cast<size_t>(n));
  std::iota(f.order.begin(), f.order.end(), 0);
  const auto m = h.matrix();
  if (act_order)
    std::stable_sort(f.order.begin(), f.order.end(), [&](int32_t a, int32_t b) { return m[a * n + a] > m[b * n + b]; });

  Buffer lower(static_cast<size_t>(n * n) * sizeof(double));
  for (;; f.damping = f.damping == 0 ? 1e-8 : f.damping * 10) {
    check(f.damping < 1e6, "the Hessian of {} columns has no Cholesky factor even with damping {} of its mean diagonal",
          n, f.damping);
    fill_reversed(h, f, f.damping * diagonal.mean, lower.as<double>());
    if (cholesky(lower.as<double>(), n, pool)) break;
  }
  f.upper = Buffer(static_cast<size_t>(n * n) * sizeof(float));
  invert_into(lower.as<double>(), n, f.upper.as<float>(), pool);
  f.weight.resize(static_cast<size_t>(n));
  for (int64_t j = 0; j < n; ++j)
    f.weight[f.order[j]] = m[f.order[j] * n + f.order[j]] == 0 ? 0.0f : 1.0f / (f.u(j, j) * f.u(j, j));
  return f;
}

}  // namespace fidelio
