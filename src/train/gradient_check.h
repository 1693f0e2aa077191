// This file checks gradients by finite differences in FP64. It is for tests only.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/rng.h"
#include "train/host/host.h"

namespace fidelio::train {

inline std::vector<double> normal_values(uint64_t stream, int64_t n, double scale = 1) {
  Rng rng(7, stream);
  std::vector<double> values(static_cast<size_t>(n));
  for (double& x : values) x = scale * rng.normal();
  return values;
}

// An Argument is an argument of a function, with the gradient that a backward operation gave for it.
struct Argument {
  std::string name;
  std::span<double> value;
  std::span<const double> gradient;
};

// Compares (f(x + h u) - f(x - h u)) / 2h with gradient . u, along a random direction u of each argument alone.
// Richardson's extrapolation with h and h / 2 has an error of O(h^4). With h = 1e-3 the series contributes about
// 1e-12, and rounding 1e-16 |f| / h = 1e-13 |f|. So a difference of 1e-6 of |gradient| |u| / sqrt(n), which is the
// size of a sum of n terms of random sign, shows an error.
inline void expect_gradients(const std::function<double()>& f, const std::vector<Argument>& arguments,
                             double tolerance = 1e-6, double h = 1e-3) {
  for (const Argument& a : arguments) {
    const std::vector<double> direction = normal_values(99, static_cast<int64_t>(a.value.size()));
    const std::vector<double> start(a.value.begin(), a.value.end());
    const auto slope = [&](double step) {
      double value[2];
      for (const int side : {0, 1}) {
        for (size_t i = 0; i < start.size(); ++i) a.value[i] = start[i] + (side == 0 ? step : -step) * direction[i];
        value[side] = f();
      }
      std::copy(start.begin(), start.end(), a.value.begin());
      return (value[0] - value[1]) / (2 * step);
    };
    const double coarse = slope(h), fine = slope(h / 2), measured = (4 * fine - coarse) / 3;
    double expected = 0, norm = 0;
    for (size_t i = 0; i < start.size(); ++i) {
      expected += a.gradient[i] * direction[i];
      norm += a.gradient[i] * a.gradient[i];
    }
    ASSERT_GT(norm, 0) << a.name;
    EXPECT_NEAR(measured, expected, tolerance * std::sqrt(norm)) << a.name;
  }
}

}  // namespace fidelio::train
