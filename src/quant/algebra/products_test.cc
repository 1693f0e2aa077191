#include "quant/algebra/products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/rng.h"

namespace fidelio {
namespace {

template <typename T>
std::vector<T> random(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& v : values) v = static_cast<T>(rng.normal());
  return values;
}

// Computes the header's formula, element by element.
template <typename T>
T element(int64_t i, int64_t j, int64_t k, T alpha, Factor<T> a, Factor<T> b, T before) {
  T sum = before;
  for (int64_t run = 0; run < k; run += kProductRun) {
    T p = 0;
    for (int64_t l = run; l < std::min(k, run + kProductRun); ++l) {
      const T x = a.transposed ? a.values[l * a.stride + i] : a.values[i * a.stride + l];
      const T y = b.transposed ? b.values[j * b.stride + l] : b.values[l * b.stride + j];
      p = std::fma(x, y, p);
    }
    sum += alpha * p;
  }
  return sum;
}

template <typename T>
void check_product(int64_t m, int64_t n, int64_t k, T alpha, bool ta, bool tb, bool add) {
  const int64_t gap = 3;  // rows are longer than the part of them that is used
  const Factor<T> a{nullptr, (ta ? m : k) + gap, ta}, b{nullptr, (tb ? k : n) + gap, tb};
  const std::vector<T> x = random<T>((ta ? k : m) * a.stride, 1), y = random<T>((tb ? n : k) * b.stride, 2),
                       before = random<T>(m * (n + gap), 3);
  std::vector<T> c = before;
  const Factor<T> left{x.data(), a.stride, ta}, right{y.data(), b.stride, tb};
  multiply<T>(m, n, k, alpha, left, right, add, c.data(), n + gap);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n + gap; ++j) {
      const auto at = static_cast<size_t>(i * (n + gap) + j);
      if (j >= n)
        EXPECT_EQ(c[at], before[at]);
      else
        ASSERT_EQ(c[at], element<T>(i, j, k, alpha, left, right, add ? before[at] : T{0})) << i << " " << j;
    }
}

// The results equal the formula bit for bit, for sizes that are no multiples of a tile.
TEST(Products, AreTheChainsThatTheHeaderNames) {
  for (const auto& [m, n, k] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {1, 1, 1}, {6, 16, 256}, {7, 17, 257}, {97, 64, 300}, {5, 259, 3}, {12, 40, 520}})
    for (int how = 0; how < 8; ++how) {
      check_product<float>(m, n, k, how % 3 == 0 ? -1.0f : 1.0f, (how & 1) != 0, (how & 2) != 0, (how & 4) != 0);
      check_product<double>(m, n, k, how % 3 == 0 ? -1.0 : 1.0, (how & 1) != 0, (how & 2) != 0, (how & 4) != 0);
    }
}

// The bound |x L^T - b| <= n eps |L| |x| holds row by row. It is the backward error of substitution (Higham 2002,
// theorem 8.5).
TEST(Products, SolutionsSolve) {
  for (int64_t n : {1, 5, 64, 65, 200}) {
    const int64_t many = 9;
    std::vector<double> lower = random<double>(n * n, 4);
    for (int64_t i = 0; i < n; ++i)
      lower[static_cast<size_t>(i * n + i)] = 8 + std::fabs(lower[static_cast<size_t>(i)]);
    const std::vector<double> right = random<double>(many * n, 5);
    std::vector<double> x = right, y(right.size());
    for (int64_t r = 0; r < many; ++r)
      for (int64_t i = 0; i < n; ++i) y[static_cast<size_t>(i * many + r)] = right[static_cast<size_t>(r * n + i)];
    solve_right(many, n, lower.data(), n, x.data(), n);
    solve_left(n, many, lower.data(), n, y.data(), many);
    for (int64_t r = 0; r < many; ++r)
      for (int64_t i = 0; i < n; ++i) {
        double a = 0, b = 0, size = 0;
        for (int64_t j = 0; j <= i; ++j) {
          const double l = lower[static_cast<size_t>(i * n + j)];
          a += l * x[static_cast<size_t>(r * n + j)];
          b += l * y[static_cast<size_t>(j * many + r)];
          size += std::fabs(l * x[static_cast<size_t>(r * n + j)]);
        }
        const double allowed = 4 * static_cast<double>(n + 1) * 0x1p-53 * size,
                     wanted = right[static_cast<size_t>(r * n + i)];
        EXPECT_NEAR(a, wanted, allowed) << n;
        EXPECT_NEAR(b, wanted, allowed) << n;
      }
  }
}

}  // namespace
}  // namespace fidelio
