// Task-lossless calibration (SLQ appendix A.3, Algorithm 2), with its intervals: recovery = 1 - alpha KL through one
// measured point, KL on the questions' own text. The line says how much KL a loss of accuracy allows; the answers to
// other questions say whether it was right (compress/search/tasks.cc).
#pragma once
#include <cstdint>

#include "core/estimate.h"

namespace fidelio {

struct TaskCalibration {
  Estimate kl;              // of the calibration plan on the questions' own text, nats a token
  double kl_predicted = 0;  // by the table
  Estimate recovery;        // accuracy over the reference's
  // What the questions of the check make of this: how far below 1 their interval reaches for a model that has lost
  // nothing, and how many they are for each question of the calibration.
  double unchanged = 0, share = 1;

  double rho() const { return kl.value / kl_predicted; }
  // Loss of accuracy a nat. Its interval is made from those of loss and KL on logarithmic axes, where squared distances
  // of the ends add up (the two are measured on the same questions, so a common error is counted twice, not missed).
  Estimate alpha() const;
  Estimate predicted(double kl) const;  // recovery at a KL: 1 - alpha kl, from alpha's interval
  // How far below the recovery its lower end is expected to lie on the questions of the check, at a loss: as the
  // calibration's own, by the square roots of loss and of number, and no less than of a model that has lost nothing.
  double reach(double loss) const;
};

// Throws Error where no line can be read from the point: no KL, or a loss that cannot be told from none.
void check_calibration(const TaskCalibration& point);
// The largest KL at which, by the upper end of alpha, the lower end of the recovery on the questions of the check is
// expected to be at least 1 - drop. Throws Error, naming how many questions would do, where these cannot show so small
// a drop whatever is measured; and where the KL lies beyond the calibration point, where nothing is known of the line.
double kl_allowed(const TaskCalibration& point, double drop, int64_t check_questions);

}  // namespace fidelio
