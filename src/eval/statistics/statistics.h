// Statistics for reports: intervals, paired tests and summaries. Pure functions of their inputs; whatever is random
// takes a seed. tools/statistics_fixtures.py makes the scipy and numpy answers the tests compare with.
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

nlohmann::json to_json(const Estimate& estimate);  // {"value": x, "ci95": [low, high]}; what is not finite becomes null
Estimate estimate_from_json(const nlohmann::json& json);  // the inverse, with NaN for what is null

double mean(std::span<const double> values);
double standard_deviation(std::span<const double> values);          // n - 1 in the denominator; NaN below two values
double percentile(std::span<const double> values, double percent);  // 0..100, linear between order statistics (numpy's)
double normal_cdf(double z);
double normal_quantile(double p);  // 0 < p < 1

// --- Bootstrap. A unit (a sequence, a question) is drawn whole, because the positions inside one are not independent.

struct BootstrapOptions {
  int resamples = 2000;
  uint64_t seed = 0;
};

// Sum of numerators over sum of denominators: a mean over positions whose sequences differ in length. (Shares of
// questions have intervals of their own: eval/statistics/proportions.h.) The interval is BCa (Efron 1987): percentiles of the resampled ratio, corrected for its bias and, by the jackknife, for its skew; with some ten
// sequences and a skewed KL the plain percentiles miss too often on one side. Resamples whose denominator is zero are
// left out. Value NaN if the sum of all denominators is zero. Throws Error if sizes differ.
Estimate ratio(std::span<const double> numerators, std::span<const double> denominators,
               const BootstrapOptions& options = {});

// --- Paired comparisons of a candidate with a reference, one pair per question.

// Wilcoxon's signed-rank test, two-sided, on differences. Zeros are dropped (Wilcoxon's own way; scipy's
// zero_method="wilcox"), ties share their mean rank. Up to 50 pairs the null distribution is computed exactly, given
// the ties; beyond, the normal approximation with tie correction and no continuity correction.
struct Wilcoxon {
  double rank_sum_positive = 0, rank_sum_negative = 0;
  double p = 1;       // 1 if every difference is zero
  int64_t pairs = 0;  // without the zeros
  bool exact = false;
};
Wilcoxon wilcoxon(std::span<const double> differences);

// Cohen's d of paired samples: mean of the differences over their standard deviation; 0 if all differences are zero.
double cohens_d(std::span<const double> differences);

// sd / mean over the runs of each query; queries with fewer than two runs or a mean of 0 are left out.
std::vector<double> within_query_cv(std::span<const std::vector<double>> runs);

// Least squares through the origin, y = slope x, e.g. 1 - recovery against KL (SLQ Eq. 4). r2 = 1 - SS_residual / SS
// about 0.
struct OriginFit {
  double slope = 0, r2 = 0;
};
OriginFit fit_through_origin(std::span<const double> x, std::span<const double> y);

}  // namespace fidelio
