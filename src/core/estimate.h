// This file defines Estimate, a measured number together with its uncertainty. Every reported figure has this form.
#pragma once
#include <limits>

namespace fidelio {

// This is a 95% confidence interval. Both ends are NaN where the data cannot give one (a single sequence).
struct Interval {
  double low = std::numeric_limits<double>::quiet_NaN(), high = std::numeric_limits<double>::quiet_NaN();
};
struct Estimate {
  double value = 0;
  Interval ci95{};
};

// Returns one minus the estimate: the EAR that belongs to a loss, or the loss that belongs to an EAR.
inline Estimate complement(const Estimate& e) { return {1 - e.value, {1 - e.ci95.high, 1 - e.ci95.low}}; }

}  // namespace fidelio
