// This file runs coordinate descent after GPTQ, exactly in the metric of the Hessian.
//
// GPTQ fixes one column after the other and never returns to it. With every other code fixed, though, the loss f(q) =
// (w - q) H (w - q)^T of a row is a parabola in one entry. Its minimum is q_j + g_j / H_jj with g = H (w - q), so the
// nearest level to it is the best single change there is. Passes over all columns repeat that until little moves.
// Between passes each group's scale takes its own closed-form optimum for the present codes, rounded as stored, and
// only if that helps. Each step can only lower the loss.
//
// With a ViewLoss the loss is f(q) + weight f(view of q). The view is the weight that the high bits of the codes make
// by themselves (formats' high_planes). Both terms are parabolas in one entry, and the best code is found cell by
// cell of the view's levels. Plain rounding would not need this, since the high bits of the nearest code are the
// nearest code of the view. The two readers differ only in how they want errors of other columns compensated.
#pragma once
#include "quant/hessian.h"
#include "quant/strip.h"

namespace fidelio {

struct ViewLoss {
  int bits = 0;      // number of high bits in the view
  float weight = 0;  // 0 counts the whole weight alone
};

// These options choose the rounds over columns and scales. With 0 passes the loss is only measured.
struct DescentOptions {
  int passes = 0;
  bool codes = true, scales = true;  // which of them a round changes
};
// A DescentLoss is the strip's loss, the sum over rows of (w - q) H (w - q)^T, before and after.
struct DescentLoss {
  double before = 0, after = 0;
};
// Improves the codes and scales of one strip.
DescentLoss descend(const FormatSpec& spec, const Levels& levels, const Hessian& hessian, const DescentOptions& options,
                    const ViewLoss& view, Strip& strip);

}  // namespace fidelio
