// This file holds the calibration for task-lossless compression (SLQ appendix A.3, Algorithm 2), with its intervals.
// It draws the line recovery = 1 - alpha KL through one measured point, where KL is measured on the text of the
// questions. The line says how much KL a given loss of accuracy allows. Answers to other questions then check it
// (compress/search/tasks.cc).
#pragma once
#include <cstdint>

#include "core/estimate.h"

namespace fidelio {

struct TaskCalibration {
  Estimate kl;              // measured KL of the calibration plan on the text of the questions, nats per token
  double kl_predicted = 0;  // the KL that the table predicts for the same plan
  Estimate recovery;        // accuracy of the calibration plan divided by that of the reference
  // These two describe the questions of the later check. `unchanged` is how far below 1 the interval of the recovery
  // would reach for a model that has lost nothing. `share` is the number of check questions for each calibration
  // question.
  double unchanged = 0, share = 1;

  // Returns the ratio of measured to predicted KL.
  double rho() const { return kl.value / kl_predicted; }
  // Returns the loss of accuracy per nat. Its interval combines those of the loss and of the KL on logarithmic axes,
  // where the squared distances of the ends add up. The two are measured on the same questions, so a common error is
  // counted twice rather than missed.
  Estimate alpha() const;
  Estimate predicted(double kl) const;  // predicts the recovery at a KL as 1 - alpha kl, with alpha's interval
  // Returns how far the lower end of the recovery is expected to lie below its estimate on the check questions, given
  // a loss. It scales the calibration's own distance by the square roots of the loss and of the number of questions.
  // It is at least the distance for a model that has lost nothing.
  double reach(double loss) const;
};

// Throws Error if no line can be drawn through the point: its KL is zero, or its loss cannot be told from zero.
void check_calibration(const TaskCalibration& point);
// Returns the largest KL at which the recovery on the check questions is expected to have a lower end of at least 1 -
// drop, judged by the upper end of alpha. Throws Error, and names how many questions would suffice, if the check
// questions are too few to show so small a drop. Throws Error also if the KL would lie beyond the calibration point,
// where nothing is known about the line.
double kl_allowed(const TaskCalibration& point, double drop, int64_t check_questions);

}  // namespace fidelio
