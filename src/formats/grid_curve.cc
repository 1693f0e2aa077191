#include "formats/grid_curve.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace fidelio {
namespace {

constexpr int kTerms = 4;  // The terms are 1, u, u^3 and u^5.

// Rounds to the nearest FP16 number, ties to even. Magnitudes must be below 65504.
double half(double x) {
  if (x == 0) return 0;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10);
  return std::nearbyint(x / unit) * unit;
}

double place_of(size_t code, size_t count) {
  return static_cast<double>(2 * code + 1) / static_cast<double>(count) - 1;
}

// Solves weighted least squares by normal equations. The four terms on [-1, 1] are conditioned well enough for doubles.
std::array<double, kTerms> least_squares(std::span<const double> y, std::span<const double> weights) {
  double m[kTerms][kTerms + 1] = {};
  for (size_t k = 0; k < y.size(); ++k) {
    const double u = place_of(k, y.size()), term[kTerms] = {1, u, u * u * u, u * u * u * u * u};
    for (int i = 0; i < kTerms; ++i) {
      for (int j = 0; j < kTerms; ++j) m[i][j] += weights[k] * term[i] * term[j];
      m[i][kTerms] += weights[k] * term[i] * y[k];
    }
  }
  // This is Gauss-Jordan elimination. The matrix is positive definite, so it needs no pivoting.
  for (int i = 0; i < kTerms; ++i)
    for (int r = 0; r < kTerms; ++r) {
      if (r == i) continue;
      const double factor = m[r][i] / m[i][i];
      for (int j = i; j <= kTerms; ++j) m[r][j] -= factor * m[i][j];
    }
  std::array<double, kTerms> solved;
  for (int i = 0; i < kTerms; ++i) solved[static_cast<size_t>(i)] = m[i][kTerms] / m[i][i];
  return solved;
}

// Returns the unit in which the larger end of the polynomial is 127.
double unit_of(const std::array<double, kTerms>& c, size_t count) {
  double peak = 0;
  for (size_t k : {size_t{0}, count - 1}) {
    const double u = place_of(k, count);
    peak = std::max(peak, std::fabs(c[0] + u * (c[1] + u * u * (c[2] + u * u * c[3]))));
  }
  return 127 / peak;
}

GridCurve rounded(const std::array<double, kTerms>& c, double unit) {
  const auto to_half = [&](double x) { return static_cast<float>(half(x * unit)); };
  return {to_half(c[1]), to_half(c[2]), to_half(c[3]), static_cast<int>(std::lround(c[0] * unit))};
}

bool ascends(std::span<const int8_t> entries) {
  return std::adjacent_find(entries.begin(), entries.end(), [](int8_t a, int8_t b) { return a >= b; }) ==
             entries.end() &&
         std::max<int>(entries.back(), -entries.front()) == 127;
}

GridCurve curve_through(std::span<const int8_t> entries) {
  const std::vector<double> y(entries.begin(), entries.end()), even(entries.size(), 1.0);
  return rounded(least_squares(y, even), 1);
}

}  // namespace

std::vector<int8_t> entries_of(const GridCurve& curve, int bits) {
  std::vector<int8_t> entries(size_t{1} << bits);
  for (size_t k = 0; k < entries.size(); ++k) {
    const double u = place_of(k, entries.size()), t = half(u * u);
    const double p = half(half(curve.a5 * t + curve.a3) * t + curve.a1);
    const double sum = half(p * u + (1664 + curve.a0));
    entries[k] = static_cast<int8_t>(std::clamp(sum - 1664, -128.0, 127.0));
  }
  return entries;
}

std::optional<std::vector<int8_t>> fit_curve(std::span<const double> entries, std::span<const double> weights) {
  const int bits = std::countr_zero(entries.size());
  const std::array<double, kTerms> fitted = least_squares(entries, weights);
  const GridCurve best = rounded(fitted, unit_of(fitted, entries.size()));
  // The curve through rounded entries sometimes has other entries. After a few rounds it usually reproduces its own,
  // but it may also cycle. In that case a neighbour of the best curve, one unit of FP16 away, is tried.
  for (int attempt = 0; attempt < 16; ++attempt) {
    GridCurve start = best;
    start.a1 += 0.0625f * static_cast<float>(attempt);
    std::vector<int8_t> grid = entries_of(start, bits);
    for (int round = 0; round < 20 && ascends(grid); ++round) {
      std::vector<int8_t> again = entries_of(curve_through(grid), bits);
      if (again == grid) return grid;
      grid = std::move(again);
    }
  }
  return std::nullopt;
}

std::vector<int8_t> typical_grid(int bits) {
  std::vector<double> entries(size_t{1} << bits), even(entries.size(), 1.0);
  for (size_t k = 0; k < entries.size(); ++k) {
    const double u = place_of(k, entries.size());
    entries[k] = u * (0.66 + 0.06 * u * u + 0.28 * u * u * u * u);
  }
  return fit_curve(entries, even).value();
}

std::optional<GridCurve> curve_of(std::span<const int8_t> entries) {
  if (!std::has_single_bit(entries.size()) || !is_curve_width(std::countr_zero(entries.size())) || !ascends(entries))
    return std::nullopt;
  const GridCurve curve = curve_through(entries);
  const std::vector<int8_t> own = entries_of(curve, std::countr_zero(entries.size()));
  if (!std::equal(own.begin(), own.end(), entries.begin())) return std::nullopt;
  return curve;
}

}  // namespace fidelio
