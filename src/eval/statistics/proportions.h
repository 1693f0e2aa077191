// This file makes intervals for shares of questions answered right, and for how two models' shares differ on the same
// questions. The intervals are score intervals or exact ones, so that forty right answers of forty are not taken for
// certainty: a bootstrap of them would have no spread at all.
#pragma once
#include <cstdint>
#include <span>

#include "core/estimate.h"

namespace fidelio {

// Returns Wilson's score interval for `right` of `total` (Wilson 1927). It lies inside [0, 1] and is sensible at 0
// and at `total`. `right` may be a sum of means over seeds, because a mean of values in [0, 1] varies no more than a
// proportion with the same mean.
Estimate wilson(double right, int64_t total);

// Returns P(X >= k) for a binomial X of n trials with probability p.
double binomial_tail(int64_t k, int64_t n, double p);
// Returns the exact interval of a proportion (Clopper and Pearson 1934). Each end is missed with a chance of at most
// (1 - confidence) / 2.
Estimate clopper_pearson(int64_t right, int64_t total, double confidence = 0.95);

// PairedCounts counts the questions by which of two models answered them right. Counts may be fractions, where scores
// are means over seeds.
struct PairedCounts {
  double both = 0, reference_only = 0, candidate_only = 0, neither = 0;
  int64_t total = 0;
};
// Counts scores in [0, 1] of the same questions. Throws Error if the numbers of scores differ or a score is outside
// [0, 1].
PairedCounts paired_counts(std::span<const double> candidate, std::span<const double> reference);

// Returns the candidate's accuracy minus the reference's. Up to kExactQuestions questions, the interval comes from an
// exact unconditional test that orders tables by Tango's score statistic (Hsueh, Liu and Chen 2001). The test's
// nuisance parameter, the share of questions on which the two differ, is kept within a confidence set of its own
// (Berger and Boos 1994). The interval covers at least 95% whatever the truth is. With more questions it is Tango's
// score interval itself (Tango 1998). The ends are NaN without questions.
inline constexpr int64_t kExactQuestions = 1000;
Estimate paired_difference(const PairedCounts& counts);

// Returns the candidate's accuracy divided by the reference's (the recovery), with the score interval for ratios of
// paired proportions (Nam and Blackwelder 2002). It is NaN if the reference is never right.
Estimate paired_ratio(const PairedCounts& counts, double confidence = 0.95);

// Returns the mean of independent estimates. Its interval is made from theirs by adding the squared distances of the
// ends from the values (Zou and Donner 2008).
Estimate mean_of_estimates(std::span<const Estimate> estimates);

// A Verdict says whether a candidate has kept the reference's accuracy. It is `lossless` if it is not worse by
// `margin`, at 97.5% confidence; it is `different` if the interval of the difference excludes 0. Both can hold. If
// neither does, the questions are too few to tell.
struct Verdict {
  Estimate difference{};
  double margin = 0;
  int64_t questions = 0;
  // About how many questions would be needed for "lossless", if the two go on to differ as they did. It is 0 if the
  // verdict is lossless already or cannot become so.
  int64_t needed = 0;
  bool lossless = false, different = false;
  bool too_few() const { return !lossless && !different; }
};
// Compares two models by their scores, which are per-question means over seeds.
Verdict compare_scores(std::span<const double> candidate, std::span<const double> reference, double margin);

}  // namespace fidelio
