// Shares of questions answered right, and how two models' shares differ on the same questions. Intervals here are score
// or exact ones, so that forty answers out of forty are no certainty: a bootstrap of them has no spread at all.
#pragma once
#include <cstdint>
#include <span>

#include "core/estimate.h"

namespace fidelio {

// Wilson's score interval for `right` of `total` (Wilson 1927): inside [0, 1], sensible at 0 and at `total`. `right`
// may be a sum of means over seeds: a mean of values in [0, 1] varies no more than a proportion of the same mean.
Estimate wilson(double right, int64_t total);

// P(X >= k) for X binomial of n and p.
double binomial_tail(int64_t k, int64_t n, double p);
// The exact interval of a proportion (Clopper and Pearson 1934): each end is missed with at most (1 - confidence) / 2.
Estimate clopper_pearson(int64_t right, int64_t total, double confidence = 0.95);

// Questions by which of two models answered them right; fractions of a question where scores are means over seeds.
struct PairedCounts {
  double both = 0, reference_only = 0, candidate_only = 0, neither = 0;
  int64_t total = 0;
};
// Scores in [0, 1] of the same questions. Throws Error if they are not as many, or outside.
PairedCounts paired_counts(std::span<const double> candidate, std::span<const double> reference);

// The candidate's accuracy less the reference's. Up to kExactQuestions questions the interval comes from the exact
// unconditional test that orders tables by Tango's score statistic (Hsueh, Liu and Chen 2001), its nuisance, the share
// of questions on which the two differ, kept within a confidence set of its own (Berger and Boos 1994); it covers at
// least 95% whatever the truth. Beyond, it is Tango's score interval itself (Tango 1998). NaN ends without questions.
inline constexpr int64_t kExactQuestions = 1000;
Estimate paired_difference(const PairedCounts& counts);

// The candidate's accuracy over the reference's (recovery), by the score test for ratios of paired proportions (Nam and
// Blackwelder 2002). NaN if the reference is never right.
Estimate paired_ratio(const PairedCounts& counts, double confidence = 0.95);

// Mean of independent estimates with an interval made from theirs (Zou and Donner 2008): squared distances of the ends
// from the values add up.
Estimate mean_of_estimates(std::span<const Estimate> estimates);

// Whether a candidate has kept the reference's accuracy. Lossless: it is not worse by `margin`, at 97.5%; different:
// the interval of the difference excludes 0. Both can hold. Where neither does, the questions are too few to tell.
struct Verdict {
  Estimate difference{};
  double margin = 0;
  int64_t questions = 0;
  int64_t needed = 0;  // questions, about, for "lossless" if the two go on to differ as they did; 0: known or hopeless
  bool lossless = false, different = false;
  bool too_few() const { return !lossless && !different; }
};
// Scores are per-question means over seeds.
Verdict compare_scores(std::span<const double> candidate, std::span<const double> reference, double margin);

}  // namespace fidelio
