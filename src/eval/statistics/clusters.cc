#include "eval/statistics/clusters.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "eval/statistics/statistics.h"

namespace fidelio {
namespace {

constexpr double kLeast = 1e-15;  // a smaller KL or loss is only rounding, and its logarithm would dominate all others

// Evaluates the continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8) by Lentz's method.
double beta_fraction(double x, double a, double b) {
  constexpr double kTiny = 1e-300;
  double c = 1, d = 1 / std::max(1 - (a + b) * x / (a + 1), kTiny), f = d;
  for (int m = 1; m < 10'000; ++m) {
    double last = 1;
    for (double numerator : {m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                             -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))}) {
      d = 1 + numerator * d;
      d = 1 / (std::fabs(d) < kTiny ? kTiny : d);
      c = 1 + numerator / c;
      c = std::fabs(c) < kTiny ? kTiny : c;
      last = c * d;
      f *= last;
    }
    if (std::fabs(last - 1) < 1e-15) break;
  }
  return f;
}

double incomplete_beta(double x, double a, double b) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(x, a, b) / a;
  return 1 - front * beta_fraction(1 - x, b, a) / b;
}

// A LogRatio is the logarithm of a ratio of sums and its linearised standard error, made from the documents'
// deviations from the ratio.
struct LogRatio {
  double value = 0, error = 0;
};
LogRatio log_ratio(std::span<const double> sums, std::span<const double> counts, std::span<const size_t> drawn) {
  double sum = 0, count = 0, square = 0;
  for (size_t i : drawn) {
    sum += sums[i];
    count += counts[i];
  }
  sum = std::max(sum, kLeast * count);
  for (size_t i : drawn) {
    const double deviation = sums[i] / sum - counts[i] / count;
    square += deviation * deviation;
  }
  const auto n = static_cast<double>(drawn.size());
  return {std::log(sum / count), std::sqrt(square * n / (n - 1))};
}

// Take n normal values with deviation s, and m further ones with mean M' and deviation s'. Returns the .9 quantile of
// (M' + reach s' - M) / s, where M is the mean of the n values. Both deviations vary, so this is simulated: it is the
// .9 quantile of
//   (z sqrt(1/n + 1/m) + reach c_m) / c_n,   with z normal and c_k = sqrt(chi^2_{k-1} / (k - 1)).
double reach_of_others(size_t n, int64_t m, double reach) {
  constexpr int kDraws = 1000;
  Rng rng(0);
  const auto deviation = [&](int64_t count) {
    double square = 0;
    for (int64_t i = 1; i < count; ++i) {
      const double z = rng.normal();
      square += z * z;
    }
    return std::sqrt(square / static_cast<double>(count - 1));
  };
  const double apart = std::sqrt(1 / static_cast<double>(n) + 1 / static_cast<double>(m));
  std::vector<double> ends;
  for (int i = 0; i < kDraws; ++i) {
    const double here = deviation(static_cast<int64_t>(n));
    ends.push_back((rng.normal() * apart + reach * deviation(m)) / here);
  }
  return percentile(ends, 90);
}

// Returns the logarithms of the documents' means.
std::vector<double> logs_of(std::span<const double> sums, std::span<const double> counts) {
  check(sums.size() == counts.size(), "documents need as many counts as sums: {} and {}", counts.size(), sums.size());
  std::vector<double> logs;
  for (size_t i = 0; i < sums.size(); ++i)
    if (counts[i] > 0) logs.push_back(std::log(std::max(sums[i] / counts[i], kLeast)));
  return logs;
}

// Moves outliers inwards. A document whose mean lies further from the median than three standard deviations, as
// estimated by the median distance from the median, is moved to that distance.
std::vector<double> without_strange_ones(std::span<const double> sums, std::span<const double> counts) {
  const std::vector<double> logs = logs_of(sums, counts);
  if (logs.empty()) return {sums.begin(), sums.end()};
  const double middle = percentile(logs, 50);
  std::vector<double> distances;
  for (const double x : logs) distances.push_back(std::abs(x - middle));
  // For normal values, 1.4826 turns the median distance into a standard deviation.
  const double furthest = 3 * 1.4826 * percentile(distances, 50);
  std::vector<double> kept;
  for (size_t i = 0; i < sums.size(); ++i)
    kept.push_back(counts[i] > 0 ? std::clamp(sums[i], counts[i] * std::exp(middle - furthest),
                                              counts[i] * std::exp(middle + furthest))
                                 : sums[i]);
  return kept;
}

Estimate around(double log_value, double reach) {
  return {std::exp(log_value), {std::exp(log_value - reach), std::exp(log_value + reach)}};
}

}  // namespace

double student_cdf(double t, double freedom) {
  const double tail = 0.5 * incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5);
  return t < 0 ? tail : 1 - tail;
}

double student_quantile(double p, double freedom) {
  check(p > 0 && p < 1, "a quantile of Student's t needs a probability inside (0, 1), not {}", p);
  if (p < 0.5) return -student_quantile(1 - p, freedom);
  double low = 0, high = 1;
  while (student_cdf(high, freedom) < p) high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-14 * high; ++i) {
    const double middle = 0.5 * (low + high);
    (student_cdf(middle, freedom) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

namespace {

// Studentised holds the standard error of a mean's logarithm, and the studentised values of resamples of the
// documents.
struct Studentised {
  double error = 0;
  std::vector<double> values;
};

Studentised by_own_documents(std::span<const double> sums, std::span<const double> counts, const LogRatio& whole,
                             const ClusterOptions& options) {
  Studentised s{whole.error, {}};
  Rng rng(options.seed);
  std::vector<size_t> drawn(sums.size());
  for (int b = 0; b < options.resamples; ++b) {
    for (size_t& i : drawn) i = static_cast<size_t>(rng.below(sums.size()));
    const LogRatio one = log_ratio(sums, counts, drawn);
    if (one.error > 0) s.values.push_back((one.value - whole.value) / one.error);
  }
  return s;
}

// RelativeSpread is the mean of ratios and their standard deviation divided by that mean.
struct RelativeSpread {
  double mean = 0, deviation = 0;
};
RelativeSpread relative_spread(double sum, double squares, double count) {
  const double mean = sum / count, variance = (squares / count - mean * mean) * count / (count - 1);
  return {mean, std::sqrt(std::max(variance, 0.0)) / mean};
}

// Draws documents of these lengths from the pool. The other documents of the pool are drawn as well, because the
// pooled error is random too.
Studentised by_pooled_documents(std::span<const double> counts, const LogRatio& whole, const ClusterOptions& options) {
  const std::span<const double> ratios = options.ratios;
  const auto size = static_cast<double>(ratios.size());
  double count = 0, squared_counts = 0, sum = 0, squares = 0;
  for (const double c : counts) count += c, squared_counts += c * c;
  for (const double r : ratios) sum += r, squares += r * r;
  const RelativeSpread pool = relative_spread(sum, squares, size);
  const double of_mean = std::sqrt(squared_counts) / count;  // turns a document's deviation into that of their mean
  Studentised s{std::max(whole.error, of_mean * pool.deviation), {}};
  Rng rng(options.seed);
  std::vector<double> drawn(counts.size());
  std::vector<size_t> all(counts.size());
  std::iota(all.begin(), all.end(), 0);
  for (int b = 0; b < options.resamples; ++b) {
    sum = squares = 0;
    for (size_t i = 0; i < ratios.size(); ++i) {
      const double r = ratios[static_cast<size_t>(rng.below(ratios.size()))];
      if (i < drawn.size()) drawn[i] = counts[i] * r;
      sum += r, squares += r * r;
    }
    const LogRatio one = log_ratio(drawn, counts, all);
    const double error = std::max(one.error, of_mean * relative_spread(sum, squares, size).deviation);
    if (error > 0) s.values.push_back((one.value - std::log(pool.mean)) / error);
  }
  return s;
}

// Returns how far from the median document, as a logarithm, a new document lies with chance `tail` on each side: the
// ratio of that rank in the pool. A pool of n documents says nothing beyond its outermost ones, which a new document
// exceeds with chance 1 / (n + 1).
Interval reach_of_ratios(std::span<const double> ratios, double tail) {
  std::vector<double> sorted(ratios.begin(), ratios.end());
  std::sort(sorted.begin(), sorted.end());
  const auto beyond = static_cast<size_t>(tail * static_cast<double>(sorted.size() + 1));
  const size_t rank = std::max<size_t>(beyond, 1);
  return {std::log(std::max(sorted[rank - 1], kLeast)), std::log(std::max(sorted[sorted.size() - rank], kLeast))};
}

}  // namespace

int resamples_for(double confidence) { return static_cast<int>(std::lround(50 / ((1 - confidence) / 2))); }

Estimate cluster_mean(std::span<const double> sums, std::span<const double> counts, const ClusterOptions& options) {
  check(sums.size() == counts.size(), "a mean over documents needs as many counts as sums: {} and {}", counts.size(),
        sums.size());
  std::vector<size_t> all;
  double sum = 0, count = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    all.push_back(i);
    sum += sums[i];
    count += counts[i];
  }
  if (count == 0) return {kNaN, {kNaN, kNaN}};
  Estimate e{sum / count, {kNaN, kNaN}};
  if (all.size() < 2) return e;
  const LogRatio whole = log_ratio(sums, counts, all);
  const Studentised s = sum > 0 && options.ratios.size() >= all.size() ? by_pooled_documents(counts, whole, options)
                                                                       : by_own_documents(sums, counts, whole, options);
  if (s.error == 0) {
    e.ci95 = {e.value, e.value};
    return e;
  }
  const double tail = (1 - options.confidence) / 2;
  const double t = student_quantile(1 - tail, static_cast<double>(all.size()) - 1);
  const double up = std::max(percentile(s.values, 100 * (1 - tail)), t),
               down = std::min(percentile(s.values, 100 * tail), -t);
  e.ci95 = {std::exp(whole.value - up * s.error), std::exp(whole.value - down * s.error)};
  return e;
}

Estimate next_document(std::span<const double> sums, std::span<const double> counts, double confidence,
                       std::span<const double> ratios) {
  const std::vector<double> logs = logs_of(sums, counts);
  if (logs.empty()) return {kNaN, {kNaN, kNaN}};
  const double centre = mean(logs);
  if (logs.size() < 2) return {std::exp(centre), {kNaN, kNaN}};
  const auto n = static_cast<double>(logs.size());
  const double tail = (1 - confidence) / 2;
  Estimate e = around(centre, student_quantile(1 - tail, n - 1) * standard_deviation(logs) * std::sqrt(1 + 1 / n));
  if (ratios.empty()) return e;
  // Each ratio was taken of a median that included its own document, which is not so for a new document.
  const double apart = std::sqrt((n + 1) / (n - 1)), middle = percentile(logs, 50);
  const Interval reach = reach_of_ratios(ratios, tail);
  e.ci95.low = std::min(e.ci95.low, std::exp(middle + apart * reach.low));
  e.ci95.high = std::max(e.ci95.high, std::exp(middle + apart * reach.high));
  return e;
}

double largest_unseen_share(int64_t documents, double chance) {
  return documents > 0 ? 1 - std::pow(chance, 1 / static_cast<double>(documents)) : 1;
}

double confidence_of_each(double confidence, int64_t intervals) {
  return 1 - (1 - confidence) / static_cast<double>(std::max<int64_t>(intervals, 1));
}

Estimate foreseen_mean(std::span<const double> measured, std::span<const double> counts, int64_t others,
                       double confidence) {
  const std::vector<double> sums = without_strange_ones(measured, counts);
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0),
               count = std::accumulate(counts.begin(), counts.end(), 0.0);
  if (sums.size() < 2 || others < 2 || count == 0) return {sum / count, {kNaN, kNaN}};
  std::vector<size_t> all(sums.size());
  std::iota(all.begin(), all.end(), 0);
  const LogRatio whole = log_ratio(sums, counts, all);
  const double n = static_cast<double>(all.size()), there = static_cast<double>(others);
  const double reach = student_quantile(1 - (1 - confidence) / 2, there - 1) / std::sqrt(there);
  Estimate e = around(whole.value, reach_of_others(all.size(), others, reach) * whole.error * std::sqrt(n));
  e.value = sum / count;
  return e;
}

Estimate foreseen_document(std::span<const double> sums, std::span<const double> counts, int64_t others,
                           double confidence) {
  const std::vector<double> logs = logs_of(without_strange_ones(sums, counts), counts);
  if (logs.empty()) return {kNaN, {kNaN, kNaN}};
  const double centre = mean(logs);
  if (logs.size() < 2 || others < 2) return {std::exp(centre), {kNaN, kNaN}};
  const auto there = static_cast<double>(others);
  const double reach = student_quantile(1 - (1 - confidence) / 2, there - 1) * std::sqrt(1 + 1 / there);
  return around(centre, reach_of_others(logs.size(), others, reach) * standard_deviation(logs));
}

}  // namespace fidelio
