// gamma: what a symmetric grid costs against an asymmetric one (SLQ section 3.1, Lemma 3.2). A group with values in [L,
// U] has steps D = (U - L) / (2^b - 1) on its own range and D = 2 max(|L|, |U|) / (2^b - 1) on one around zero;
// rounding to a uniform grid has a variance of D^2 / 12 (Bennett), so the ratio of the variances is gamma^2 = (2
// max(|L|, |U|) / (U - L))^2, for any b.
//
// Over many groups the law speaks of sums: sum D_sym^2 / sum D_asym^2, not the mean of the groups' gamma^2.
#pragma once
#include <cstdint>
#include <span>

namespace fidelio {

struct GammaLaw {
  double predicted = 0;  // sum D_sym^2 / sum D_asym^2
  double measured =
      0;               // squared errors of rounding to the two grids, symmetric over asymmetric; NaN if nothing is lost
  double largest = 0;  // gamma^2 of the worst group
  double gamma() const;  // sqrt(predicted)
};
// w (out, in) in groups of `group` columns (0: whole rows; the last may be ragged). Both grids are the theory's: 2^bits
// levels from end to end of the range, in double; stored scales and zero points are other matters. Throws Error for
// bits outside 2..8.
GammaLaw gamma_law(std::span<const float> w, int64_t out, int64_t in, int group, int bits);

}  // namespace fidelio
