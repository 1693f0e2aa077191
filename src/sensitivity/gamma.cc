#include "sensitivity/gamma.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace fidelio {
namespace {

double rounding_error(std::span<const float> w, double low, double step) {
  double sum = 0;
  for (float x : w) {
    const double error = low + step * std::round((x - low) / step) - x;
    sum += error * error;
  }
  return sum;
}

}  // namespace

double GammaLaw::gamma() const { return std::sqrt(predicted); }

GammaLaw gamma_law(std::span<const float> w, int64_t out, int64_t in, int group, int bits) {
  check(bits >= 2 && bits <= 8, "gamma: {} bits; expected 2 to 8", bits);
  check(static_cast<int64_t>(w.size()) == out * in && group >= 0,
        "gamma: {} values in groups of {} are no ({}, {}) matrix", w.size(), group, out, in);
  const double levels = std::pow(2.0, bits) - 1;
  const int64_t width = group == 0 ? in : group;
  double sym = 0, asym = 0, error_sym = 0, error_asym = 0;
  GammaLaw law;
  for (int64_t row = 0; row < out; ++row)
    for (int64_t first = 0; first < in; first += width) {
      const std::span<const float> part =
          w.subspan(static_cast<size_t>(row * in + first), static_cast<size_t>(std::min(width, in - first)));
      const auto [low, high] = std::minmax_element(part.begin(), part.end());
      if (*low == *high) continue;  // a group of one value has no range
      const double reach = std::max(std::abs(double{*low}), std::abs(double{*high})), span = double{*high} - *low;
      sym += 4 * reach * reach;
      asym += span * span;
      law.largest = std::max(law.largest, 4 * reach * reach / (span * span));
      error_sym += rounding_error(part, -reach, 2 * reach / levels);
      error_asym += rounding_error(part, *low, span / levels);
    }
  law.predicted = asym > 0 ? sym / asym : 1;
  law.measured = error_asym > 0 ? error_sym / error_asym : std::numeric_limits<double>::quiet_NaN();
  return law;
}

}  // namespace fidelio
