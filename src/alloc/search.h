// Search to a target (SLQ section 3.3): predict, build, measure, recalibrate, until what was measured meets the target.
#pragma once
#include <functional>
#include <limits>
#include <optional>

#include "alloc/solve.h"
#include "core/estimate.h"

namespace fidelio {

struct Target {
  std::optional<double> ear;  // lower confidence bound must reach this
  std::optional<double> kl;   // upper confidence bound must stay below this
  // Lower confidence bound of greedy agreement, the share of positions with the same most probable token, must reach this.
  std::optional<double> top1 = std::nullopt;

  bool empty() const { return !ear && !kl && !top1; }
  bool operator==(const Target&) const = default;
  // The KL at which the target is predicted to be met, by 1 - EAR = ear_constant sqrt(KL); infinity without a target.
  double allowed_kl(double ear_constant) const;
};

struct Measurement {
  Estimate ear, kl;
  int64_t bytes = 0;                                           // true file bytes of what was built
  Estimate top1 = {std::numeric_limits<double>::quiet_NaN()};  // greedy agreement; NaN where it was not measured
};
// Builds the plan and measures it on text the search has not seen, through the kernels that serve.
using MeasurePlan = std::function<Measurement(const Plan&)>;

bool meets(const Measurement& m, const Target& target);

struct Trial {
  Plan plan;
  Measurement measured;
  double rho = 1;  // calibration used to pick this plan: measured KL / predicted KL so far
};

struct SearchResult {
  std::vector<Trial> trials;      // in order
  int best = -1;                  // the smallest trial that meets the target; -1: none does, not even the widest plan
  std::optional<Plan> predicted;  // by all trials the smallest plan that will meet it; none: no plan will
};

// Distribution-lossless search. The front is walked by calibrated prediction: KL_hat = rho * KL_predicted, EAR_hat = 1 -
// c sqrt(KL_hat) with c recalibrated too; greedy agreement likewise, with a constant of its own. After each measurement the
// next plan is the smallest predicted to meet the target, until what passes and what fails are neighbours or nearly of one
// size, or `max_trials` are spent.
struct SearchOptions {
  int max_trials = 6;
  double rho = 1;         // what to expect before the first measurement
  double resolution = 0;  // sizes that differ by this share of themselves count as one
};
SearchResult search_to_target(const SensitivityTable& table, const std::vector<Plan>& front, const Target& target,
                              const SearchOptions& options, const MeasurePlan& measure);

}  // namespace fidelio
