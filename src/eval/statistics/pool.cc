#include "eval/statistics/pool.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "eval/statistics/statistics.h"

namespace fidelio {
namespace {

constexpr size_t kLeastOfAKind = 4;
constexpr double kStrange = 3;  // in standard deviations
// A document that loses less than this share of a typical one counts as losing nothing.
constexpr double kLeastRatio = 1e-15;

}  // namespace

void DocumentPool::add(int kind, std::span<const double> sums, std::span<const double> counts) {
  check(sums.size() == counts.size(), "documents need as many counts as sums: {} and {}", counts.size(), sums.size());
  std::vector<double> means;
  for (size_t i = 0; i < sums.size(); ++i)
    if (counts[i] > 0) means.push_back(sums[i] / counts[i]);
  if (means.size() < kLeastOfAKind) return;
  double typical = percentile(means, 50);
  if (typical <= 0) typical = mean(means);  // more than half of the documents lose nothing
  if (typical <= 0) return;
  for (const double m : means) residuals_.push_back({std::log(std::max(m / typical, kLeastRatio)), kind});
}

double DocumentPool::spread_of(int kind) const {
  std::vector<double> distances;
  for (const Residual& r : residuals_)
    if (r.kind == kind) distances.push_back(std::abs(r.log));
  // For normal values, 1.4826 turns the median distance into a standard deviation.
  return distances.empty() ? 0 : 1.4826 * percentile(distances, 50);
}

std::vector<double> DocumentPool::ratios(int kind) const {
  const double own = spread_of(kind);
  std::map<int, double> spreads;
  for (const Residual& r : residuals_)
    if (!spreads.contains(r.kind)) spreads[r.kind] = spread_of(r.kind);
  std::vector<double> all;
  for (const Residual& r : residuals_) {
    const double spread = spreads.at(r.kind);
    const bool ordinary = std::abs(r.log) <= kStrange * spread;
    all.push_back(std::exp(ordinary && own > 0 ? r.log * own / spread : r.log));
  }
  return all;
}

}  // namespace fidelio
