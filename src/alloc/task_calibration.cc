#include "alloc/task_calibration.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace fidelio {

Estimate TaskCalibration::alpha() const {
  const double loss = 1 - recovery.value, at = loss / kl.value;
  const auto distance = [](double a, double b) { return std::hypot(std::log(a), std::log(b)); };
  return {at,
          {at * std::exp(-distance(loss / (1 - recovery.ci95.high), kl.ci95.high / kl.value)),
           at * std::exp(distance((1 - recovery.ci95.low) / loss, kl.value / kl.ci95.low))}};
}

Estimate TaskCalibration::predicted(double at) const {
  const Estimate a = alpha();
  return {1 - a.value * at, {1 - a.ci95.high * at, 1 - a.ci95.low * at}};
}

double TaskCalibration::reach(double loss) const {
  const double own = recovery.value - recovery.ci95.low, lost = 1 - recovery.value;
  return std::max(unchanged, own * std::sqrt(loss / (lost * share)));
}

void check_calibration(const TaskCalibration& point) {
  check(point.kl.ci95.low > 0 && point.kl_predicted > 0,
        "task calibration: the calibration plan has no measured KL, or of too few questions for an interval");
  check(
      point.recovery.ci95.high < 1,
      "task calibration: the answers recover {:.4f} [{:.4f}, {:.4f}], which does not differ from no loss, so no slope "
      "can be read from it. Calibrate lower (--calibration-bits), or ask more questions",
      point.recovery.value, point.recovery.ci95.low, point.recovery.ci95.high);
}

double kl_allowed(const TaskCalibration& point, double drop, int64_t check_questions) {
  check_calibration(point);
  check(drop > 0 && drop < 1, "a drop of accuracy lies between 0 and 1, not {}", drop);
  // The interval of a model that has lost nothing shrinks in proportion to 1 / questions. A tenth of the drop is left
  // for the loss itself.
  check(
      point.unchanged < drop,
      "--accuracy-drop {}: {} questions cannot show that: a model that answered every one of them alike would be shown "
      "to keep {:.4f}. Ask about {:.0f} (of --tasks two of three are asked for this), or allow more",
      drop, check_questions, 1 - point.unchanged,
      std::ceil(static_cast<double>(check_questions) * point.unchanged / (0.9 * drop) / 10) * 10);
  double low = 0, high = drop;  // these are losses; the drop that can be shown falls as the loss grows
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (middle + point.reach(middle) <= drop ? low : high) = middle;
  }
  const double kl = low / point.alpha().ci95.high;
  check(kl <= point.kl.value,
        "task calibration: the KL allowed ({:.4g}) lies beyond the calibration plan's ({:.4g}), where nothing is known "
        "of how accuracy falls; the single-point method does not hold here. Calibrate lower (--calibration-bits)",
        kl, point.kl.value);
  return kl;
}

}  // namespace fidelio
