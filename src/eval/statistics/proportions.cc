#include "eval/statistics/proportions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "eval/statistics/statistics.h"

namespace fidelio {
namespace {

constexpr double kTail = 0.025;  // the chance beyond each end

double log_choose(int64_t n, int64_t k) {
  return std::lgamma(static_cast<double>(n + 1)) - std::lgamma(static_cast<double>(k + 1)) -
         std::lgamma(static_cast<double>(n - k + 1));
}

double log_binomial(int64_t k, int64_t n, double p) {
  if (p <= 0) return k == 0 ? 0 : -std::numeric_limits<double>::infinity();
  if (p >= 1) return k == n ? 0 : -std::numeric_limits<double>::infinity();
  return log_choose(n, k) + static_cast<double>(k) * std::log(p) + static_cast<double>(n - k) * std::log1p(-p);
}

// Finds the place where a monotonic `holds` changes between `low`, where it is false, and `high`, where it is true.
template <typename F>
double boundary(double low, double high, F&& holds) {
  for (int i = 0; i < 60 && std::fabs(high - low) > 1e-9; ++i) {
    const double middle = (low + high) / 2;
    (holds(middle) ? high : low) = middle;
  }
  return high;
}

// --- The next functions treat differences of paired proportions, as seen from the candidate: of n questions it
// `gained` some and `lost` some, and the hypothesis is that its accuracy is higher by d.

// Returns Tango's statistic: the observed difference less d, divided by its standard error under the hypothesis. The
// share of lost questions takes its likeliest value there, which is the root of a quadratic equation.
double tango(double gained, double lost, double n, double d) {
  const double s = gained + lost - d * (2 * n + lost - gained);
  const double q = (s + std::sqrt(std::max(0.0, s * s + 8 * n * lost * d * (1 - d)))) / (4 * n);
  const double variance = n * (2 * q + d - d * d);
  const double distance = gained - lost - n * d;
  if (variance <= 1e-12 * n) return distance == 0 ? 0 : std::copysign(1e9, distance);
  return distance / std::sqrt(variance);
}

// Returns P(statistic >= the observed one | d), maximised over the shares of differing questions that the data allow.
double exact_p(int64_t gained, int64_t lost, int64_t n, double d) {
  constexpr double kAllowed = 1e-4;  // chance that the share lies outside its interval; it is added to the answer
  constexpr int kShares = 32;
  const double observed = tango(static_cast<double>(gained), static_cast<double>(lost), static_cast<double>(n), d);
  const Interval share = clopper_pearson(gained + lost, n, 1 - kAllowed).ci95;
  const double first = std::max(share.low, std::fabs(d));
  if (first > share.high) return kAllowed;
  // For each number m of differing questions this finds the fewest gained ones that are at least as extreme. The
  // statistic rises with the number gained.
  const double widest = share.high * static_cast<double>(n);
  const int64_t rows = std::min(n, static_cast<int64_t>(widest + 8 * std::sqrt(widest) + 20));
  std::vector<int64_t> fewest(static_cast<size_t>(rows + 1));
  for (int64_t m = 0; m <= rows; ++m) {
    int64_t low = 0, high = m + 1;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      const bool out = tango(static_cast<double>(middle), static_cast<double>(m - middle), static_cast<double>(n), d) >=
                       observed - 1e-9;
      (out ? high : low) = out ? middle : middle + 1;
    }
    fewest[static_cast<size_t>(m)] = low;
  }
  double worst = 0;
  for (int i = 0; i <= kShares; ++i) {
    const double psi = first + (share.high - first) * i / kShares;
    const double up = psi > 0 ? (psi + d) / (2 * psi) : 0;  // chance that a differing question is a gained one
    const double centre = psi * static_cast<double>(n), reach = 8 * std::sqrt(centre) + 20;
    double p = 0;
    for (auto m = static_cast<int64_t>(std::max(0.0, centre - reach)); m <= rows; ++m) {
      if (static_cast<double>(m) > centre + reach) break;
      const int64_t k = fewest[static_cast<size_t>(m)];
      if (k <= m) p += std::exp(log_binomial(m, n, psi)) * binomial_tail(k, m, up);
    }
    worst = std::max(worst, p);
  }
  return std::min(1.0, worst + kAllowed);
}

// Returns the lower end of the interval. Fractions of questions are rounded against the candidate.
double lowest_difference(double gained, double lost, int64_t total) {
  const double n = static_cast<double>(total), value = (gained - lost) / n;
  if (total > kExactQuestions) return boundary(-1, value, [&](double d) { return tango(gained, lost, n, d) <= kZ95; });
  const auto up = static_cast<int64_t>(std::floor(gained + 1e-9));
  const auto down = std::min(total - up, static_cast<int64_t>(std::ceil(lost - 1e-9)));
  return boundary(-1, value, [&](double d) { return exact_p(up, down, total, d) >= kTail; });
}

}  // namespace

Estimate wilson(double right, int64_t total) {
  check(right >= 0 && right <= static_cast<double>(total), "{} right of {} is no accuracy", right, total);
  if (total == 0) return {kNaN, {kNaN, kNaN}};
  const double n = static_cast<double>(total), p = right / n, z2 = kZ95 * kZ95;
  const double centre = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kZ95 / (1 + z2 / n) * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  return {p, {std::max(0.0, centre - half), std::min(1.0, centre + half)}};
}

// Sums the terms from k upwards, or those from k - 1 downwards for the complement, whichever is the shorter tail.
// Every term follows from the one before.
double binomial_tail(int64_t k, int64_t n, double p) {
  if (k <= 0) return 1;
  if (k > n || p <= 0) return 0;
  if (p >= 1) return 1;
  const bool upper = static_cast<double>(k) > p * static_cast<double>(n + 1);
  int64_t j = upper ? k : k - 1;
  double term = std::exp(log_binomial(j, n, p)), sum = 0;
  const double odds = p / (1 - p);
  while (j >= 0 && j <= n) {
    sum += term;
    if (term < 1e-17 * sum) break;
    term *= upper ? odds * static_cast<double>(n - j) / static_cast<double>(j + 1)
                  : static_cast<double>(j) / (odds * static_cast<double>(n - j + 1));
    j += upper ? 1 : -1;
  }
  return upper ? sum : 1 - sum;
}

Estimate clopper_pearson(int64_t right, int64_t total, double confidence) {
  check(right >= 0 && right <= total, "{} right of {} is no proportion", right, total);
  if (total == 0) return {kNaN, {kNaN, kNaN}};
  const double tail = (1 - confidence) / 2, value = static_cast<double>(right) / static_cast<double>(total);
  const double low =
      right == 0 ? 0 : boundary(0, value, [&](double p) { return binomial_tail(right, total, p) >= tail; });
  const double high =
      right == total ? 1 : boundary(1, value, [&](double p) { return 1 - binomial_tail(right + 1, total, p) >= tail; });
  return {value, {low, high}};
}

PairedCounts paired_counts(std::span<const double> candidate, std::span<const double> reference) {
  check(candidate.size() == reference.size(), "scores are compared question by question: {} and {} questions",
        candidate.size(), reference.size());
  PairedCounts c;
  c.total = static_cast<int64_t>(candidate.size());
  for (size_t i = 0; i < candidate.size(); ++i) {
    const double x = candidate[i], y = reference[i];
    check(x >= 0 && x <= 1 && y >= 0 && y <= 1, "a score lies in [0, 1], not {} or {}", x, y);
    c.both += std::min(x, y);
    c.candidate_only += std::max(0.0, x - y);
    c.reference_only += std::max(0.0, y - x);
    c.neither += 1 - std::max(x, y);
  }
  return c;
}

Estimate paired_difference(const PairedCounts& c) {
  if (c.total == 0) return {kNaN, {kNaN, kNaN}};
  const double value = (c.candidate_only - c.reference_only) / static_cast<double>(c.total);
  return {value,
          {lowest_difference(c.candidate_only, c.reference_only, c.total),
           -lowest_difference(c.reference_only, c.candidate_only, c.total)}};
}

Estimate paired_ratio(const PairedCounts& c, double confidence) {
  const double candidate = c.both + c.candidate_only, reference = c.both + c.reference_only;
  if (!(reference > 0)) return {kNaN, {kNaN, kNaN}};
  const double n = static_cast<double>(c.total), x = candidate / n, y = reference / n;
  const double z = normal_quantile(1 - (1 - confidence) / 2);
  const double only = c.candidate_only / n, other = c.reference_only / n, neither = c.neither / n;
  // This is (x - r y) divided by its standard error if the true ratio is r, with the two shares of differing
  // questions at their likeliest values.
  const auto statistic = [&](double r) {
    const double root = std::sqrt(std::max(0.0, (x - r * r * y) * (x - r * r * y) + 4 * r * r * only * other));
    const double gained = (-x + r * r * (y + 2 * only) + root) / (2 * r * (r + 1));
    const double lost = r * gained - (r - 1) * (1 - neither);
    const double variance = r * std::max(0.0, gained + lost) / n;
    const double distance = x - r * y;
    if (variance <= 1e-15) return distance == 0 ? 0.0 : std::copysign(1e9, distance);
    return distance / std::sqrt(variance);
  };
  const double value = candidate / reference;
  double high = std::max(2 * value, 2.0);
  while (statistic(high) > -z && high < 1e9) high *= 2;
  const double low = value == 0 ? 0 : boundary(1e-9, value, [&](double r) { return statistic(r) <= z; });
  return {value, {low, boundary(high, std::max(value, 1e-9), [&](double r) { return statistic(r) >= -z; })}};
}

Estimate mean_of_estimates(std::span<const Estimate> estimates) {
  check(!estimates.empty(), "a mean needs at least one estimate");
  double below = 0, above = 0;
  Estimate mean;
  for (const Estimate& e : estimates) {
    mean.value += e.value;
    below += (e.value - e.ci95.low) * (e.value - e.ci95.low);
    above += (e.ci95.high - e.value) * (e.ci95.high - e.value);
  }
  const auto n = static_cast<double>(estimates.size());
  mean.value /= n;  // dividing at the end makes the mean of ten recoveries of 1 exactly 1
  mean.ci95 = {mean.value - std::sqrt(below) / n, mean.value + std::sqrt(above) / n};
  return mean;
}

namespace {

// Rounds up to two digits, since the estimate is not more precise.
int64_t about(double n) {
  const double digit = std::pow(10, std::max(0.0, std::floor(std::log10(n)) - 1));
  return static_cast<int64_t>(std::ceil(n / digit) * digit);
}

// Returns about how many questions would show that the loss is below the margin. If no question differs, (1 -
// margin)^n must be below the tail. Otherwise the difference less z standard errors must be above -margin.
int64_t questions_needed(const PairedCounts& c, double margin) {
  const double n = static_cast<double>(c.total), d = (c.candidate_only - c.reference_only) / n;
  if (margin <= 0 || margin >= 1 || d <= -margin) return 0;
  const double differing = (c.candidate_only + c.reference_only) / n;
  const double alike = std::log(kTail) / std::log1p(-margin);
  return about(std::max(alike, kZ95 * kZ95 * (differing - d * d) / ((margin + d) * (margin + d))));
}

}  // namespace

Verdict compare_scores(std::span<const double> candidate, std::span<const double> reference, double margin) {
  const PairedCounts counts = paired_counts(candidate, reference);
  Verdict v{paired_difference(counts), margin, counts.total};
  v.lossless = v.difference.ci95.low > -margin;
  v.different = v.difference.ci95.low > 0 || v.difference.ci95.high < 0;
  if (v.too_few() && counts.total > 0) v.needed = questions_needed(counts, margin);
  return v;
}

}  // namespace fidelio
