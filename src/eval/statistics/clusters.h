// This file makes intervals for positive quantities that are measured on documents: KL, or 1 - EAR. Positions within
// a document are alike, and documents are independent, so the document is the unit of sampling. What holds for the
// mean of a kind of text need not hold for its next document; there is an interval for each. Both are made for
// logarithms, in which such quantities are nearly normal, so that no end is negative.
#pragma once
#include <cstdint>
#include <span>

#include "core/estimate.h"

namespace fidelio {

// Returns P(T <= t) for Student's t with `freedom` > 0 degrees of freedom. The second function is its inverse for 0 <
// p < 1.
double student_cdf(double t, double freedom);
double student_quantile(double p, double freedom);

struct ClusterOptions {
  double confidence = 0.95;  // the chance that the interval covers, with both ends together
  int resamples = 2000;
  uint64_t seed = 0;
  // Relative differences of documents, if more are known than these (DocumentPool, pool.h).
  std::span<const double> ratios{};
};

// Returns the number of resamples of which fifty lie beyond each end: 2,000 at 95%.
int resamples_for(double confidence);

// Returns the mean over positions, which is the sum of `sums` over the sum of `counts`, with one entry of each per
// document. Its interval is the bootstrap-t by document (Efron and Tibshirani 1993, section 12.5) of its logarithm,
// studentised by the linearised standard error of the ratio. Its coverage holds even with ten documents, where
// percentile intervals are too narrow. It is never narrower than Student's interval, since resamples of few documents
// can be alike by chance. The ends are NaN with fewer than two documents, and the value is NaN without positions.
// Throws Error if the sizes differ.
Estimate cluster_mean(std::span<const double> sums, std::span<const double> counts, const ClusterOptions& options = {});

// Predicts the mean of a new document, from the same origin and read in the same way, with this confidence. `value`
// is the expected median, exp(m). The ends are exp(m +- t s sqrt(1 + 1/n)), where m and s are the mean and standard
// deviation of the logarithms of the n documents' means, and t has n - 1 degrees of freedom. If `ratios` are given,
// each end is at least as far away as the median document times the ratio that a new document exceeds with the same
// chance.
Estimate next_document(std::span<const double> sums, std::span<const double> counts, double confidence = 0.95,
                       std::span<const double> ratios = {});

// Returns the largest share of all documents that a kind of document may have and still be missing among `documents`
// random ones with at least this chance: 1 - chance^(1 / documents). With 28 documents it is 12.3%.
double largest_unseen_share(int64_t documents, double chance = 0.025);

// Returns the confidence that each of several intervals needs so that all hold together with `confidence`
// (Bonferroni).
double confidence_of_each(double confidence, int64_t intervals);

// These two foresee the intervals that `others` further documents of the same kind will give, before they are
// measured. If logarithms are normal, the later upper end lies below the foreseen one in nine of ten cases, and
// likewise the lower end above it. For the mean it is three of four cases where lengths differ and tails are heavy.
// Both means and both deviations are random, and are simulated 1,000 times.
//
// A document more than three standard deviations away, as estimated by the median distance from the median, counts as
// lying at that distance. The choice of a plan to test should not hang on one strange document, and the test itself
// leaves none out. Merely widening the interval of a few documents would not do: one strange document among ten makes
// it as wide as if all were strange.
Estimate foreseen_mean(std::span<const double> sums, std::span<const double> counts, int64_t others,
                       double confidence = 0.95);
Estimate foreseen_document(std::span<const double> sums, std::span<const double> counts, int64_t others,
                           double confidence = 0.95);

}  // namespace fidelio
