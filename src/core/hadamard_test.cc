#include "core/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/rng.h"

namespace fidelio {
namespace {

// H H^T = order I holds exactly, and every entry is +1 or -1.
void expect_hadamard(const std::vector<int8_t>& h, int64_t order) {
  for (int64_t i = 0; i < order; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      int64_t sum = 0;
      for (int64_t k = 0; k < order; ++k)
        sum += h[static_cast<size_t>(i * order + k)] * h[static_cast<size_t>(j * order + k)];
      ASSERT_EQ(sum, i == j ? order : 0) << order << ": rows " << i << ", " << j;
    }
  for (int8_t value : h) ASSERT_EQ(value * value, 1);
}

TEST(Hadamard, PaleysMatricesAreThoseOfTheirOrders) {
  // These cover primes and fields of 9, 25, 49, 27, 125 and 343 elements, by the first and the second construction. The
  // widths of the layers of Llama, Qwen and Mistral need 12, 20, 28, 36, 44, 76, 100, 108, 148 and 344.
  for (int64_t order : {4, 8, 12, 20, 24, 28, 36, 44, 52, 76, 100, 108, 148, 252, 344}) {
    const std::vector<int8_t> h = paley(order);
    ASSERT_EQ(static_cast<int64_t>(h.size()), order * order) << order;
    expect_hadamard(h, order);
  }
}

TEST(Hadamard, OrdersWithoutOneByPaleyHaveNone) {
  // 92 = 91 + 1 = 2 (45 + 1) and 156 = 155 + 1 = 2 (77 + 1), where none is the power of a prime. No matrix of order 6
  // exists at all. 40 = 39 + 1 = 2 (19 + 1), but 19 = 3 mod 4.
  for (int64_t order : {1, 2, 6, 10, 40, 92, 116, 156, 172}) EXPECT_TRUE(paley(order).empty()) << order;
}

struct Width {
  int64_t columns, order, core;
};

TEST(Hadamard, EveryWidthHasItsLargestOrderWithTheSmallestCore) {
  // These are widths of models. The transform spans the whole width where it can, and blocks of it elsewhere.
  for (const Width& w :
       {Width{64, 64, 1}, Width{1280, 1280, 20}, Width{576, 576, 36}, Width{1536, 1536, 12}, Width{5632, 5632, 44},
        Width{11008, 11008, 344}, Width{13824, 13824, 108}, Width{14336, 14336, 28}, Width{18944, 18944, 148},
        Width{4864, 4864, 76}, Width{352, 352, 44}, Width{9, 1, 1}, Width{14, 2, 1}, Width{24, 24, 12},
        Width{40, 40, 20}, Width{92, 4, 1}, Width{156, 52, 52}, Width{1, 1, 1}}) {
    const Hadamard how = hadamard_for(w.columns);
    EXPECT_EQ(how.order, w.order) << w.columns;
    EXPECT_EQ(how.core, w.core) << w.columns;
    EXPECT_EQ(how.core * how.doubled, how.order);
    EXPECT_EQ(how.columns % how.block(), 0);
  }
}

// The expected values come from the entries of the matrix, for whole widths, blocks and strides.
TEST(Hadamard, TurnIsTheProductOfTheMatrix) {
  Rng rng(1);
  for (const auto& [length, stride] :
       {std::pair<int64_t, int64_t>{40, 1}, {14, 1}, {8, 5}, {12, 3}, {156, 1}, {9, 4}}) {
    const Hadamard how = hadamard_for(length, stride);
    std::vector<double> row(static_cast<size_t>(how.columns)), want(row.size());
    for (double& x : row) x = rng.normal();
    for (int64_t i = 0; i < how.columns; ++i) {
      const int64_t first = i / how.block() * how.block(), element = i % how.block() / stride, p = i % stride;
      for (int64_t j = 0; j < how.order; ++j)
        want[static_cast<size_t>(i)] +=
            how.entry(element, j) * row[static_cast<size_t>(first + j * stride + p)] * how.scale();
    }
    turn(how, row);
    // Each value is a sum of `order` terms of about size 1 in double.
    for (size_t i = 0; i < row.size(); ++i)
      ASSERT_NEAR(row[i], want[i], 1e-15 * static_cast<double>(how.order) * 6) << length << " " << stride << " " << i;
  }
}

TEST(Hadamard, TurningKeepsDotProducts) {
  Rng rng(2);
  for (int64_t length : {344, 1280, 576}) {
    const Hadamard how = hadamard_for(length);
    std::vector<double> a(static_cast<size_t>(length)), b(a.size());
    for (double& x : a) x = rng.normal();
    for (double& x : b) x = rng.normal();
    const auto dot = [&] {
      double sum = 0;
      for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
      return sum;
    };
    const double before = dot();
    turn(how, a), turn(how, b);
    EXPECT_NEAR(dot(), before, 1e-13 * static_cast<double>(length));
  }
}

}  // namespace
}  // namespace fidelio
