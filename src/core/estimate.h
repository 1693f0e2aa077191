// A measured number and how sure it is. Every figure that is reported has this form.
#pragma once
#include <limits>

namespace fidelio {

// A 95% interval; both NaN where the data cannot give one (a single sequence).
struct Interval {
  double low = std::numeric_limits<double>::quiet_NaN(), high = std::numeric_limits<double>::quiet_NaN();
};
struct Estimate {
  double value = 0;
  Interval ci95{};
};

}  // namespace fidelio
