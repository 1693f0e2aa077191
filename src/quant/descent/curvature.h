// This file continues the descent with a loss that knows what the model makes of a linear's outputs.
//
// GPTQ and descend() minimise tr(E H E^T), the change of the outputs. There every output counts alike, and rows are
// independent. To second order the KL of the whole model changes by tr(M E H E^T), where M (out, out) is the sum over
// tokens of dy dy^T. Here dy are the gradients of -ln p at the linear's outputs, for tokens drawn from the model's
// own distribution. H and M are the two sides of a Kronecker factor of the KL's curvature (YAQA, Tseng et al. 2025).
// M is its sketch with independent tokens; the sketch with whole sequences is noisier and was worse here. With all
// other codes fixed the loss is a parabola in one entry, with curvature M_ii H_jj and slope (M E H)_ij. Passes over
// all entries start from descend()'s codes; scales stay.
//
// M is estimated from a few ten thousand tokens, so kMomentDamping of its mean diagonal is added to the diagonal.
#pragma once
#include "core/thread_pool.h"
#include "quant/hessian.h"
#include "quant/strip.h"

namespace fidelio {

inline constexpr float kMomentDamping = 0.1f;

struct CurvatureLoss {
  double before = 0, after = 0;  // tr(M E H E^T) with the damped M
  double outputs = 0;            // tr(E H E^T) after the descent
};
// Runs `passes` passes over all strips of a matrix (out, in), with `moment` (out, out). The codes are the same for
// any number of threads.
CurvatureLoss descend_curvature(const FormatSpec& spec, const Levels& levels, const Hessian& hessian,
                                std::span<const float> moment, int64_t out, int passes, std::vector<Strip>& strips,
                                ThreadPool& pool);

}  // namespace fidelio
