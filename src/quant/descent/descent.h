// Coordinate descent after GPTQ, exact in the Hessian metric.
//
// GPTQ fixes one column after the other and never looks back. With every other code fixed, though, the loss
// f(q) = (w - q) H (w - q)^T of a row is a parabola in one entry, whose minimum is q_j + g_j / H_jj with g = H (w - q):
// the nearest level to it is the best single change there is. Passes over all columns repeat that until little moves.
// Between passes each group's scale takes its own closed-form optimum given the codes, rounded as stored and only where
// that helps. Each step can only lower the loss.
//
// With a ViewLoss the loss is f(q) + weight f(view of q), the view being the weight that the codes' high planes are by
// themselves (formats' high_planes): both are parabolas in one entry, and the best code is found cell by cell of the
// view's levels. Rounding alone needs none of this: the nearest code's high bits are the view's nearest already; it is
// the compensation of other columns' errors that the two readers want differently.
#pragma once
#include "quant/hessian.h"
#include "quant/strip.h"

namespace fidelio {

struct ViewLoss {
  int bits = 0;      // of the view
  float weight = 0;  // 0: the whole weight alone
};

// Rounds over columns and scales; 0 only measures.
struct DescentOptions {
  int passes = 0;
  bool codes = true, scales = true;  // what a round changes
};
// Returns the strip's loss sum over rows (w - q) H (w - q)^T before and after.
struct DescentLoss {
  double before = 0, after = 0;
};
DescentLoss descend(const FormatSpec& spec, const Levels& levels, const Hessian& hessian, const DescentOptions& options,
                    const ViewLoss& view, Strip& strip);

}  // namespace fidelio
