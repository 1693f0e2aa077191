// Descent with what the model makes of a linear's outputs.
//
// GPTQ and descend() minimise tr(E H E^T), the change of the outputs: every output counts alike and rows are apart. To
// second order the KL of the whole model changes by tr(M E H E^T), where M = sum over tokens dy dy^T, (out, out), of the
// gradients dy of -ln p at the linear's outputs for tokens drawn from the model's own distribution: both sides of a
// Kronecker factor of the KL's curvature (YAQA, Tseng et al. 2025, whose sketch of independent tokens M is; that of
// whole sequences is noisier and loses here). With all other codes fixed the loss is a parabola in one entry, of
// curvature M_ii H_jj and slope (M E H)_ij. Passes over all entries start from descend()'s codes; scales stay.
//
// M is an estimate from a few ten thousand tokens: kMomentDamping of its mean diagonal is added to the diagonal.
#pragma once
#include "core/thread_pool.h"
#include "quant/hessian.h"
#include "quant/strip.h"

namespace fidelio {

inline constexpr float kMomentDamping = 0.1f;

struct CurvatureLoss {
  double before = 0, after = 0;  // tr(M E H E^T), M damped
  double outputs = 0;            // tr(E H E^T) after
};
// All strips of a matrix (out, in), `moment` (out, out). The same codes for any number of threads.
CurvatureLoss descend_curvature(const FormatSpec& spec, const Levels& levels, const Hessian& hessian,
                                std::span<const float> moment, int64_t out, int passes, std::vector<Strip>& strips,
                                ThreadPool& pool);

}  // namespace fidelio
