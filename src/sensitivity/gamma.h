// This file computes gamma, the cost of a symmetric grid compared with an asymmetric one (SLQ section 3.1, Lemma
// 3.2). A group with values in [L, U] has steps of D = (U - L) / (2^b - 1) on its own range and of D = 2 max(|L|,
// |U|) / (2^b - 1) on a range around zero. Rounding to a uniform grid has a variance of D^2 / 12 (Bennett), so the
// ratio of the variances is gamma^2 = (2 max(|L|, |U|) / (U - L))^2, for any b.
//
// Over many groups the law is about sums, sum D_sym^2 / sum D_asym^2, and not about the mean of the groups' gamma^2.
#pragma once
#include <cstdint>
#include <span>

namespace fidelio {

struct GammaLaw {
  double predicted = 0;  // sum D_sym^2 / sum D_asym^2
  // The ratio of the squared errors of rounding to the two grids, symmetric over asymmetric. It is NaN if nothing is
  // lost.
  double measured = 0;
  double largest = 0;    // gamma^2 of the worst group
  double gamma() const;  // sqrt(predicted)
};
// Measures the law on w (out, in) in groups of `group` columns (0 means whole rows; the last group may be
// incomplete). Both grids are the theory's, with 2^bits levels from end to end of the range, in double, without the
// rounding of stored scales and zero points. Throws Error if `bits` is outside 2..8.
GammaLaw gamma_law(std::span<const float> w, int64_t out, int64_t in, int group, int bits);

}  // namespace fidelio
