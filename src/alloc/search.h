// This file searches for the smallest plan that meets a fidelity target (SLQ section 3.3). It predicts, builds,
// measures and recalibrates until the measurement meets the target. (SLQ's search ends with the prediction, on the
// calibration text.)
#pragma once
#include <functional>
#include <limits>
#include <optional>
#include <span>

#include "alloc/solve.h"
#include "core/estimate.h"

namespace fidelio {

// A target is one or more bounds that must hold at once. Each is compared with the end of a confidence interval, not
// with the estimate.
struct Target {
  std::optional<double> ear;  // the lower confidence bound of EAR must reach this value
  std::optional<double> kl;   // the upper confidence bound of KL (nats per token) must stay below this value
  // The lower confidence bound of greedy agreement must reach this value. Greedy agreement is the share of positions
  // at which both models have the same most probable token.
  std::optional<double> top1 = std::nullopt;

  bool empty() const { return !ear && !kl && !top1; }
  bool operator==(const Target&) const = default;
  // Returns the KL at which the target is predicted to be met, by 1 - EAR = ear_constant sqrt(KL). It is infinite
  // without a target.
  double allowed_kl(double ear_constant) const;
};

struct Measurement {
  Estimate ear, kl;
  int64_t bytes = 0;                                           // bytes of the file that was built
  Estimate top1 = {std::numeric_limits<double>::quiet_NaN()};  // greedy agreement; NaN if it was not measured
};
// A MeasurePlan builds the plan and measures it, through the serving kernels, on text that the search has not used.
using MeasurePlan = std::function<Measurement(const Plan&)>;

bool meets(const Measurement& m, const Target& target);

struct Trial {
  Plan plan;
  Measurement measured;
  double rho = 1;  // the ratio of measured to predicted KL by which this plan was picked
};

struct SearchResult {
  std::vector<Trial> trials;  // the trials in the order in which they were made
  // This is the index of the smallest trial that meets the target. It is -1 if no trial does, not even the one with
  // the most bytes.
  int best = -1;
  // Judged by all trials, this is the smallest plan that is expected to meet the target. It is empty if no plan is.
  std::optional<Plan> predicted;
};

// These options control search_to_target.
struct SearchOptions {
  int max_trials = 6;
  double rho = 1;         // the expected ratio of measured to predicted KL before the first measurement
  double resolution = 0;  // plans whose sizes differ by less than this share count as equally large
  // Trials of earlier searches for other targets, on the same text. Predictions are calibrated by them, too.
  std::span<const Trial> known = {};
};
// Searches a front of plans, given by ascending bytes, for the smallest one that meets the target. The fidelity of a
// plan is predicted by KL_hat = rho * KL_predicted and EAR_hat = 1 - c sqrt(KL_hat), and both rho and c are
// recalibrated after each measurement. Greedy agreement is predicted in the same way, with a constant of its own. The
// next plan tried is the smallest one that is predicted to meet the target. The search ends when the best plan and
// the largest one that failed are neighbours or nearly equal in size, or after `max_trials` trials. Throws Error if
// the front is empty.
SearchResult search_to_target(const SensitivityTable& table, const std::vector<Plan>& front, const Target& target,
                              const SearchOptions& options, const MeasurePlan& measure);

}  // namespace fidelio
