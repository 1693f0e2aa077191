// Positive quantities measured on documents: KL, or 1 - EAR. Positions of one document are alike and documents are not,
// so the document is what is drawn; and what holds for the mean of a kind of text need not hold for the next document.
// Both intervals are made for logarithms, where such quantities are nearly normal and no end is negative.
#pragma once
#include <cstdint>
#include <span>

#include "core/estimate.h"

namespace fidelio {

// P(T <= t) of Student's t with `freedom` > 0 degrees, and its inverse for 0 < p < 1.
double student_cdf(double t, double freedom);
double student_quantile(double p, double freedom);

struct ClusterOptions {
  double confidence = 0.95;  // of both ends together
  int resamples = 2000;
  uint64_t seed = 0;
  std::span<const double> ratios{};  // how documents differ, where more of them are known (DocumentPool, pool.h)
};

// The number of resamples of which fifty lie beyond each end: 2,000 at 95%.
int resamples_for(double confidence);

// The mean over positions: sum of `sums` over sum of `counts`, one of each a document. Its interval is the bootstrap-t by
// document (Efron and Tibshirani 1993, section 12.5) of its logarithm, studentised by the ratio's linearised standard
// error. It keeps its coverage with ten documents, where percentiles are too narrow by as much as Student's t is wider
// than the normal; and it is kept no narrower than the interval by Student's t, since resamples of a few documents can
// by chance be alike. The ends are NaN below two documents. Value NaN without positions. Throws Error if sizes differ.
Estimate cluster_mean(std::span<const double> sums, std::span<const double> counts, const ClusterOptions& options = {});

// A document that was not measured, from the same place and read in the same way: where its own mean lies with this
// confidence. `value` is the median of what is expected, exp(m); the ends are exp(m +- t s sqrt(1 + 1/n)), with m and s
// the mean and standard deviation of the logarithms of the documents' means, t of n - 1 degrees. With `ratios` the ends
// are also no nearer than the median document times the ratio that a new one passes with this chance.
Estimate next_document(std::span<const double> sums, std::span<const double> counts, double confidence = 0.95,
                       std::span<const double> ratios = {});

// The largest share of all documents that a sort of them may have without one of it being among `documents` that were
// drawn, but for this chance: 1 - chance^(1 / documents). With 28 documents it is 12.3%.
double largest_unseen_share(int64_t documents, double chance = 0.025);

// The confidence of each of several intervals under which all of them hold together with `confidence` (Bonferroni).
double confidence_of_each(double confidence, int64_t intervals);

// What those two will say of `others` documents more of the same kind, before these are measured: in nine of ten
// cases their upper end lies below this one's (and the lower end above), if logarithms are normal; where lengths differ
// and tails are heavy, the mean's in three of four. Both means and both deviations are of chance, which is drawn 1,000
// times. A document that lies more than three deviations off, by the median distance from the median, counts as one that
// lies just there: which plan is worth looking at need not hang on one strange document, and the look itself leaves none
// out. (The interval measured on a few documents, widened, will not do: one strange one among ten makes it as wide as if
// they all were.)
Estimate foreseen_mean(std::span<const double> sums, std::span<const double> counts, int64_t others,
                       double confidence = 0.95);
Estimate foreseen_document(std::span<const double> sums, std::span<const double> counts, int64_t others,
                           double confidence = 0.95);

}  // namespace fidelio
