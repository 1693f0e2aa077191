#include "engine/drafts/rejection.h"

#include <algorithm>
#include <vector>

namespace fidelio {
namespace {

double probability(const TokenDistribution& d, int32_t id) {
  const auto at = std::lower_bound(d.ids.begin(), d.ids.end(), id);
  if (at == d.ids.end() || *at != id) return 0;
  return static_cast<double>(d.weights[static_cast<size_t>(at - d.ids.begin())]) / static_cast<double>(d.total);
}

double draft_probability(const TokenDistribution* q, int32_t drafted, int32_t id) {
  return q ? probability(*q, id) : id == drafted ? 1 : 0;
}

}  // namespace

Judgement judge(const TokenDistribution& p, const TokenDistribution* q, int32_t drafted, Rng& random) {
  if (random.uniform() * draft_probability(q, drafted, drafted) < probability(p, drafted)) return {true, drafted};
  std::vector<double> left(p.ids.size());
  double sum = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const double own = static_cast<double>(p.weights[i]) / static_cast<double>(p.total);
    sum += left[i] = std::max(0.0, own - draft_probability(q, drafted, p.ids[i]));
  }
  // If p = q, rounding can leave nothing. Any draw from p is right then.
  if (sum <= 0)
    for (size_t i = 0; i < left.size(); ++i) sum += left[i] = static_cast<double>(p.weights[i]);
  double at = random.uniform() * sum;
  size_t last = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i] <= 0) continue;
    last = i;
    if (at < left[i]) break;
    at -= left[i];
  }
  return {false, p.ids[last]};
}

double overlap(const TokenDistribution& p, const TokenDistribution* q, int32_t drafted) {
  if (!q) return probability(p, drafted);
  double sum = 0;
  for (size_t i = 0; i < p.ids.size(); ++i)
    sum += std::min(static_cast<double>(p.weights[i]) / static_cast<double>(p.total), probability(*q, p.ids[i]));
  return sum;
}

}  // namespace fidelio
