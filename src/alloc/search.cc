#include "alloc/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace fidelio {

bool meets(const Measurement& m, const Target& target) {
  return (!target.ear || m.ear.ci95.low >= *target.ear) && (!target.kl || m.kl.ci95.high <= *target.kl) &&
         (!target.top1 || m.top1.ci95.low >= *target.top1);
}

namespace {

// The most probable token flips in proportion to sqrt(KL), as 1 - EAR does, but flips are more frequent: by a factor
// of 1.34 to 1.38 on quill-1m and SmolLM2, and 1.13 on Qwen2.5-Coder-0.5B. Only the first trial depends on this
// constant.
constexpr double kFlipsOverLoss = 1.3;

// A calibration holds what the measurements so far say about the predictions. It has the ratios of the trial nearest
// in size, and the relative distance of each confidence bound from its estimate.
struct Calibration {
  double rho = 1, ear_constant = 0, flip_constant = 0, ear_margin = 0, kl_margin = 0, flip_margin = 0;
};

Calibration calibrate(const SensitivityTable& table, const std::vector<Trial>& trials, int64_t bytes, double rho) {
  if (trials.empty()) return {rho, table.ear_constant, kFlipsOverLoss * table.ear_constant, 0, 0, 0};
  const Trial* nearest = &trials.front();
  for (const Trial& t : trials)
    if (std::llabs(t.plan.bytes - bytes) < std::llabs(nearest->plan.bytes - bytes)) nearest = &t;
  const Measurement& m = nearest->measured;
  const double loss = std::max(1 - m.ear.value, 1e-12), flips = std::max(1 - m.top1.value, 1e-12);
  const double root = std::sqrt(std::max(m.kl.value, 1e-300));
  return {m.kl.value / std::max(nearest->plan.kl, 1e-300),
          loss / root,
          flips / root,
          (m.ear.value - m.ear.ci95.low) / loss,
          (m.kl.ci95.high - m.kl.value) / std::max(m.kl.value, 1e-300),
          (m.top1.value - m.top1.ci95.low) / flips};
}

bool predicted_to_meet(const Plan& plan, const Calibration& c, const Target& target) {
  const double kl = c.rho * std::max(plan.kl, 0.0);
  const double loss = c.ear_constant * std::sqrt(kl), flips = c.flip_constant * std::sqrt(kl);
  return (!target.ear || 1 - loss * (1 + c.ear_margin) >= *target.ear) &&
         (!target.kl || kl * (1 + c.kl_margin) <= *target.kl) &&
         (!target.top1 || 1 - flips * (1 + c.flip_margin) >= *target.top1);
}

}  // namespace

double Target::allowed_kl(double ear_constant) const {
  double most = kl.value_or(std::numeric_limits<double>::infinity());
  if (ear && ear_constant > 0) most = std::min(most, std::pow((1 - *ear) / ear_constant, 2));
  if (top1 && ear_constant > 0) most = std::min(most, std::pow((1 - *top1) / (kFlipsOverLoss * ear_constant), 2));
  return most;
}

SearchResult search_to_target(const SensitivityTable& table, const std::vector<Plan>& front, const Target& target,
                              const SearchOptions& options, const MeasurePlan& measure) {
  check(!target.empty(), "a search needs a target: EAR, KL, greedy agreement or several of them");
  check(!front.empty(), "no plan to choose from");
  SearchResult result;
  std::vector<Trial> seen(options.known.begin(), options.known.end());
  // The plans strictly between `fails` and `passes` are still open: smaller ones failed, larger ones passed.
  int64_t fails = -1, passes = static_cast<int64_t>(front.size());
  // This says whether a smaller plan is so close in size to the best one that it would count as the same size.
  const auto as_large = [&](int64_t smaller) {
    const int64_t passing = front[static_cast<size_t>(passes)].bytes;
    return result.best >= 0 && static_cast<double>(passing - front[static_cast<size_t>(smaller)].bytes) <=
                                   options.resolution * static_cast<double>(passing);
  };
  // Returns the first plan from `begin` on that is predicted to meet the target, or the end of the front if none is.
  const auto smallest_predicted = [&](int64_t begin) {
    const auto found = std::find_if(front.begin() + begin, front.end(), [&](const Plan& plan) {
      return predicted_to_meet(plan, calibrate(table, seen, plan.bytes, options.rho), target);
    });
    return static_cast<int64_t>(found - front.begin());
  };
  while (static_cast<int>(result.trials.size()) < options.max_trials && passes - fails > 1 &&
         !(fails >= 0 && as_large(fails))) {
    const int64_t next = std::min(smallest_predicted(fails + 1), passes - 1);
    if (as_large(next)) break;  // no plan that is smaller by enough is expected to meet the target
    const Plan& plan = front[static_cast<size_t>(next)];
    const double rho = calibrate(table, seen, plan.bytes, options.rho).rho;
    result.trials.push_back({plan, measure(plan), rho});
    seen.push_back(result.trials.back());
    if (meets(result.trials.back().measured, target)) {
      passes = next;
      result.best = static_cast<int>(result.trials.size()) - 1;
    } else {
      fails = next;
    }
  }
  if (const int64_t predicted = smallest_predicted(0); predicted < std::ssize(front))
    result.predicted = front[static_cast<size_t>(predicted)];
  return result;
}

}  // namespace fidelio
