// This file has the statistics for reports: intervals, paired tests and summaries. All are pure functions of their
// inputs, and those that draw random numbers take a seed. tools/statistics_fixtures.py makes the answers of scipy and
// numpy that the tests compare with.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/estimate.h"

namespace fidelio {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kZ95 = 1.959963984540054;  // normal_quantile(.975)

// The JSON has the form {"value": x, "ci95": [low, high]}. Numbers that are not finite become null, and reading turns
// null into NaN.
nlohmann::json to_json(const Estimate& estimate);
Estimate estimate_from_json(const nlohmann::json& json);

double mean(std::span<const double> values);
// Divides by n - 1; returns NaN for fewer than two values.
double standard_deviation(std::span<const double> values);
// Percent in 0..100; linear between order statistics, as in numpy.
double percentile(std::span<const double> values, double percent);
double normal_cdf(double z);
double normal_quantile(double p);  // for 0 < p < 1

// --- The bootstrap draws a whole unit (a sequence or a question), because the positions inside one are not
// independent.

struct BootstrapOptions {
  int resamples = 2000;
  uint64_t seed = 0;
};

// Returns the sum of numerators divided by the sum of denominators, which is a mean over positions whose sequences
// differ in length. (Shares of questions have their own intervals: eval/statistics/proportions.h.) The interval is
// BCa (Efron 1987): percentiles of the resampled ratio, corrected for its bias and, by the jackknife, for its skew.
// With some ten sequences and a skewed KL, plain percentiles miss too often on one side. Resamples whose denominator
// is zero are left out. The value is NaN if the sum of all denominators is zero. Throws Error if the sizes differ.
Estimate ratio(std::span<const double> numerators, std::span<const double> denominators,
               const BootstrapOptions& options = {});

// --- The next functions compare a candidate with a reference, with one pair of values per question.

// Wilcoxon is the result of Wilcoxon's two-sided signed-rank test on differences. Zeros are dropped, as Wilcoxon does
// and scipy with zero_method="wilcox"; ties share their mean rank. Up to 50 pairs the null distribution is computed
// exactly, given the ties. Beyond that it is a normal approximation with tie correction and without continuity
// correction.
struct Wilcoxon {
  double rank_sum_positive = 0, rank_sum_negative = 0;
  double p = 1;       // the p-value; 1 if every difference is zero
  int64_t pairs = 0;  // number of pairs, without the zeros
  bool exact = false;
};
Wilcoxon wilcoxon(std::span<const double> differences);

// Returns Cohen's d of paired samples, which is the mean of the differences over their standard deviation. It is 0 if
// all differences are zero.
double cohens_d(std::span<const double> differences);

// Returns the coefficient of variation (standard deviation / mean) over the runs of each query. Queries with fewer
// than two runs or a mean of 0 are left out.
std::vector<double> within_query_cv(std::span<const std::vector<double>> runs);

// An OriginFit is a least-squares line through the origin, y = slope x, for example of 1 - recovery against KL (SLQ
// equation 4). r2 is 1 - SS_residual / SS, with the sum of squares taken about 0.
struct OriginFit {
  double slope = 0, r2 = 0;
};
OriginFit fit_through_origin(std::span<const double> x, std::span<const double> y);

}  // namespace fidelio
