// Coordinate descent after GPTQ, exact in the Hessian metric.
//
// GPTQ fixes one column after the other and never looks back. With every other code fixed, though, the loss
// f(q) = (w - q) H (w - q)^T of a row is a parabola in one entry, whose minimum is q_j + g_j / H_jj with g = H (w - q):
// the nearest level to it is the best single change there is. Passes over all columns repeat that until little moves.
// Between passes each group's scale takes its own closed-form optimum given the codes, rounded as stored and only where
// that helps. Each step can only lower the loss.
#pragma once
#include "quant/hessian.h"
#include "quant/strip.h"

namespace fidelio {

// `passes` rounds over columns and scales (0 only measures). Returns the strip's loss sum over rows (w - q) H (w - q)^T
// before and after.
struct DescentLoss {
  double before = 0, after = 0;
};
DescentLoss descend(const FormatSpec& spec, const Levels& levels, const Hessian& hessian, int passes, Strip& strip);

}  // namespace fidelio
