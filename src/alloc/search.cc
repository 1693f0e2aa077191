#include "alloc/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace fidelio {

bool meets(const Measurement& m, const Target& target) {
  return (!target.ear || m.ear.ci95.low >= *target.ear) && (!target.kl || m.kl.ci95.high <= *target.kl);
}

namespace {

// What the measurements so far say about predictions: the ratios of the trial nearest in size, and how far a confidence
// bound lies from its estimate in relative terms.
struct Calibration {
  double rho = 1, ear_constant = 0, ear_margin = 0, kl_margin = 0;
};

Calibration calibrate(const SensitivityTable& table, const std::vector<Trial>& trials, int64_t bytes, double rho) {
  if (trials.empty()) return {rho, table.ear_constant, 0, 0};
  const Trial* nearest = &trials.front();
  for (const Trial& t : trials)
    if (std::llabs(t.plan.bytes - bytes) < std::llabs(nearest->plan.bytes - bytes)) nearest = &t;
  const Measurement& m = nearest->measured;
  const double loss = std::max(1 - m.ear.value, 1e-12);
  return {m.kl.value / std::max(nearest->plan.kl, 1e-300), loss / std::sqrt(std::max(m.kl.value, 1e-300)),
          (m.ear.value - m.ear.ci95.low) / loss, (m.kl.ci95.high - m.kl.value) / std::max(m.kl.value, 1e-300)};
}

bool predicted_to_meet(const Plan& plan, const Calibration& c, const Target& target) {
  const double kl = c.rho * std::max(plan.kl, 0.0);
  const double loss = c.ear_constant * std::sqrt(kl);
  return (!target.ear || 1 - loss * (1 + c.ear_margin) >= *target.ear) &&
         (!target.kl || kl * (1 + c.kl_margin) <= *target.kl);
}

}  // namespace

SearchResult search_to_target(const SensitivityTable& table, const std::vector<Plan>& front, const Target& target,
                              const SearchOptions& options, const MeasurePlan& measure) {
  check(target.ear || target.kl, "a search needs a target: EAR, KL or both");
  check(!front.empty(), "no plan to choose from");
  SearchResult result;
  // Plans in (fails, passes) are open: smaller ones failed, larger ones passed.
  int64_t fails = -1, passes = static_cast<int64_t>(front.size());
  // Whether a smaller plan counts as one with what meets the target.
  const auto as_large = [&](int64_t smaller) {
    const int64_t passing = front[static_cast<size_t>(passes)].bytes;
    return result.best >= 0 && static_cast<double>(passing - front[static_cast<size_t>(smaller)].bytes) <=
                                   options.resolution * static_cast<double>(passing);
  };
  while (static_cast<int>(result.trials.size()) < options.max_trials && passes - fails > 1 &&
         !(fails >= 0 && as_large(fails))) {
    int64_t next = passes - 1;
    for (int64_t i = fails + 1; i < passes; ++i)
      if (predicted_to_meet(front[static_cast<size_t>(i)],
                            calibrate(table, result.trials, front[static_cast<size_t>(i)].bytes, options.rho),
                            target)) {
        next = i;
        break;
      }
    if (as_large(next)) break;  // nothing that would pay is expected to meet it
    const Plan& plan = front[static_cast<size_t>(next)];
    const double rho = calibrate(table, result.trials, plan.bytes, options.rho).rho;
    result.trials.push_back({plan, measure(plan), rho});
    if (meets(result.trials.back().measured, target)) {
      passes = next;
      result.best = static_cast<int>(result.trials.size()) - 1;
    } else {
      fails = next;
    }
  }
  return result;
}

}  // namespace fidelio
