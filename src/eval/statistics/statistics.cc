#include "eval/statistics/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/rng.h"

namespace fidelio {
namespace {

double sum(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Returns percentile() of values that are already sorted.
double sorted_percentile(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return kNaN;
  const double place = std::clamp(percent / 100, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  if (below + 1 == sorted.size()) return sorted[below];
  return sorted[below] + (sorted[below + 1] - sorted[below]) * (place - static_cast<double>(below));
}

struct Sums {
  double numerator = 0, denominator = 0;
};

// Draws one resample, which has as many units as there are, drawn with replacement.
Sums draw(Rng& rng, std::span<const double> numerators, std::span<const double> denominators) {
  Sums s;
  for (size_t i = 0; i < numerators.size(); ++i) {
    const auto unit = static_cast<size_t>(rng.below(numerators.size()));
    s.numerator += numerators[unit];
    s.denominator += denominators[unit];
  }
  return s;
}

// Returns BCa's acceleration: a sixth of the skewness of the jackknife values, with the sign that Efron gives it.
double acceleration(std::span<const double> numerators, std::span<const double> denominators) {
  const double n = sum(numerators), d = sum(denominators);
  std::vector<double> left_out;
  for (size_t i = 0; i < numerators.size(); ++i)
    if (d - denominators[i] != 0) left_out.push_back((n - numerators[i]) / (d - denominators[i]));
  const double centre = mean(left_out);
  double square = 0, cube = 0;
  for (double x : left_out) {
    square += (centre - x) * (centre - x);
    cube += (centre - x) * (centre - x) * (centre - x);
  }
  return square > 0 ? cube / (6 * std::pow(square, 1.5)) : 0;
}

// Returns the percentile of the bootstrap distribution that stands for the nominal tail `z`.
double corrected_percent(double bias, double acceleration, double z) {
  return 100 * normal_cdf(bias + (bias + z) / (1 - acceleration * (bias + z)));
}

}  // namespace

nlohmann::json to_json(const Estimate& e) {
  const auto number = [](double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(nullptr); };
  return {{"value", number(e.value)}, {"ci95", {number(e.ci95.low), number(e.ci95.high)}}};
}

Estimate estimate_from_json(const nlohmann::json& json) {
  const auto end = [&](size_t i) {
    const nlohmann::json& at = json.at("ci95").at(i);
    return at.is_null() ? std::nan("") : at.get<double>();
  };
  const nlohmann::json& value = json.at("value");
  return {value.is_null() ? std::nan("") : value.get<double>(), {end(0), end(1)}};
}

double mean(std::span<const double> values) {
  return values.empty() ? kNaN : sum(values) / static_cast<double>(values.size());
}

double standard_deviation(std::span<const double> values) {
  if (values.size() < 2) return kNaN;
  const double centre = mean(values);
  double square = 0;
  for (double x : values) square += (x - centre) * (x - centre);
  return std::sqrt(square / static_cast<double>(values.size() - 1));
}

double percentile(std::span<const double> values, double percent) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted_percentile(sorted, percent);
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z * 0.7071067811865476); }

// This is Newton's method on log(cdf / p), which is concave and rises. From a start left of the root every tangent
// meets zero left of the root too, so steps never overshoot. The start is left of the root because cdf(z) <= exp(-z^2
// / 2) / 2 for z <= 0.
double normal_quantile(double p) {
  check(p > 0 && p < 1, "a normal quantile needs a probability inside (0, 1), not {}", p);
  if (p > 0.5) return -normal_quantile(1 - p);
  double z = -std::sqrt(-2 * std::log(p));
  for (int i = 0; i < 100; ++i) {
    const double tail = normal_cdf(z), density = 0.3989422804014327 * std::exp(-0.5 * z * z);
    const double step = std::log(tail / p) * tail / density;
    z -= step;
    if (std::fabs(step) < 1e-15 * (1 + std::fabs(z))) break;
  }
  return z;
}

Estimate ratio(std::span<const double> numerators, std::span<const double> denominators,
               const BootstrapOptions& options) {
  check(numerators.size() == denominators.size(), "a ratio needs as many denominators as numerators: {} and {}",
        denominators.size(), numerators.size());
  const double total = sum(denominators);
  if (total == 0) return {kNaN, {kNaN, kNaN}};
  Estimate e{sum(numerators) / total, {kNaN, kNaN}};
  if (numerators.size() < 2) return e;

  Rng rng(options.seed);
  std::vector<double> resampled;
  for (int b = 0; b < options.resamples; ++b) {
    const Sums s = draw(rng, numerators, denominators);
    if (s.denominator != 0) resampled.push_back(s.numerator / s.denominator);
  }
  std::sort(resampled.begin(), resampled.end());
  if (resampled.empty()) return e;
  if (resampled.front() == resampled.back()) {
    e.ci95 = {e.value, e.value};
    return e;
  }
  // Values equal to the estimate count half, so that a coarse distribution (such as accuracies have) is not taken for
  // a biased one.
  const auto [first, last] = std::equal_range(resampled.begin(), resampled.end(), e.value);
  const double below =
      0.5 * (static_cast<double>(first - resampled.begin()) + static_cast<double>(last - resampled.begin()));
  const double size = static_cast<double>(resampled.size());
  const double bias = normal_quantile(std::clamp(below / size, 0.5 / size, 1 - 0.5 / size));
  const double a = acceleration(numerators, denominators);
  e.ci95 = {sorted_percentile(resampled, corrected_percent(bias, a, -kZ95)),
            sorted_percentile(resampled, corrected_percent(bias, a, kZ95))};
  return e;
}

namespace {

// Returns P(rank sum <= observed) if every sign is a fair coin. Ranks are given doubled, so that the mean ranks of
// ties are integers. ways[s] counts the sign choices whose doubled sum is s (at most 2^50, which is exact in a
// double).
double exact_tail(std::span<const int64_t> doubled_ranks, int64_t observed) {
  const int64_t total = std::accumulate(doubled_ranks.begin(), doubled_ranks.end(), int64_t{0});
  std::vector<double> ways(static_cast<size_t>(total) + 1, 0.0);
  ways[0] = 1;
  for (int64_t rank : doubled_ranks)
    for (int64_t s = total; s >= rank; --s) ways[static_cast<size_t>(s)] += ways[static_cast<size_t>(s - rank)];
  double tail = 0;
  for (int64_t s = 0; s <= observed; ++s) tail += ways[static_cast<size_t>(s)];
  return tail / std::exp2(static_cast<double>(doubled_ranks.size()));
}

}  // namespace

Wilcoxon wilcoxon(std::span<const double> differences) {
  constexpr size_t kExactPairs = 50;
  std::vector<double> d;
  std::copy_if(differences.begin(), differences.end(), std::back_inserter(d), [](double x) { return x != 0; });
  std::sort(d.begin(), d.end(), [](double a, double b) { return std::fabs(a) < std::fabs(b); });

  Wilcoxon w;
  w.pairs = static_cast<int64_t>(d.size());
  w.exact = d.size() <= kExactPairs;
  if (d.empty()) return w;
  std::vector<int64_t> doubled_ranks(d.size());
  int64_t doubled_positive = 0, doubled_negative = 0;
  double tie_sum = 0;
  for (size_t first = 0, last; first < d.size(); first = last) {
    for (last = first; last < d.size() && std::fabs(d[last]) == std::fabs(d[first]); ++last) {
    }
    // The ranks are first + 1 .. last, and this is their doubled mean.
    const auto doubled = static_cast<int64_t>(first + 1 + last);
    const auto t = static_cast<double>(last - first);
    tie_sum += t * t * t - t;
    for (size_t i = first; i < last; ++i) {
      doubled_ranks[i] = doubled;
      (d[i] > 0 ? doubled_positive : doubled_negative) += doubled;
    }
  }
  w.rank_sum_positive = static_cast<double>(doubled_positive) / 2;
  w.rank_sum_negative = static_cast<double>(doubled_negative) / 2;
  if (w.exact) {
    w.p = std::min(1.0, 2 * exact_tail(doubled_ranks, std::min(doubled_positive, doubled_negative)));
    return w;
  }
  const auto n = static_cast<double>(d.size());
  const double deviation = std::sqrt((n * (n + 1) * (2 * n + 1) - 0.5 * tie_sum) / 24);
  const double z = (std::min(w.rank_sum_positive, w.rank_sum_negative) - n * (n + 1) / 4) / deviation;
  w.p = std::min(1.0, 2 * normal_cdf(z));
  return w;
}

double cohens_d(std::span<const double> differences) {
  const double centre = mean(differences);
  return centre == 0 ? 0 : centre / standard_deviation(differences);
}

std::vector<double> within_query_cv(std::span<const std::vector<double>> runs) {
  std::vector<double> cv;
  for (const std::vector<double>& query : runs)
    if (query.size() >= 2 && mean(query) != 0) cv.push_back(standard_deviation(query) / mean(query));
  return cv;
}

OriginFit fit_through_origin(std::span<const double> x, std::span<const double> y) {
  check(x.size() == y.size() && !x.empty(), "a fit needs as many y as x and at least one: {} and {}", y.size(),
        x.size());
  double xx = 0, xy = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += x[i] * x[i];
    xy += x[i] * y[i];
    yy += y[i] * y[i];
  }
  if (xx == 0) return {kNaN, kNaN};
  return {xy / xx, yy > 0 ? xy * xy / (xx * yy) : kNaN};
}

}  // namespace fidelio
