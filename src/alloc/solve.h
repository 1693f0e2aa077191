// This file solves the multiple-choice knapsack: it gives each group one format so that the cost is least within
// budgets (SLQ section 3.3, "Bitwidth Allocation").
#pragma once
#include <optional>
#include <span>

#include "alloc/plan.h"

namespace fidelio {

// This names the quantity that is summed over groups and kept small. KL is the default because it is additive. The
// loss 1 - EAR is the paper's choice, though it is not additive.
enum class Cost : uint8_t { kl, loss };

// Returns every plan that no other plan beats in both bytes and cost, by ascending bytes. The result is exact:
// dynamic programming over groups keeps all undominated partial sums. Byte counts are coarse (multiples of the bytes
// of a group's row), so fronts stay in the thousands.
std::vector<Plan> pareto_front(const SensitivityTable& table, Cost cost);

// Returns the cheapest plan of a front that has at most `bytes` bytes, or nothing if there is none.
std::optional<Plan> best_within_bytes(const std::vector<Plan>& front, int64_t bytes);

// These are the quantities that add up over a plan. Seconds need a table with decode times.
enum class Quantity : uint8_t { bytes, seconds, kl, loss };
double amount(const Plan& plan, Quantity quantity);

struct Limit {
  Quantity quantity = Quantity::bytes;
  double most = 0;  // bound for the whole plan, including the fixed part that no group holds
};

struct Solution {
  Plan plan;
  // No plan within the limits has less than this. If the plan is proven to be optimal, it is the plan's own amount.
  double bound = 0;
};

// Returns the plan that has the least of one quantity within at most two limits on others. The result is empty if no
// plan is within the limits. Throws Error if there are more than two limits.
//
// Lagrange multipliers (prices of the limits) are chosen so that this lower bound is largest:
//     sum over groups of min over options (cost + price * weight)  -  price * limit
// They tell for each option how far a plan that takes it must lie above the bound. The options within some reach of
// the bound are combined, and the reach grows until it contains a plan, which is then optimal. Partial plans that
// another one beats in all three sums are dropped, so that groups of the same shape, which have the same weights, do
// not multiply. If more than `most_partials` partial plans remain, those nearest to the bound are kept. The
// solution's bound is then the value of the first one that was left out.
std::optional<Solution> least_within(const SensitivityTable& table, Quantity least, std::span<const Limit> limits,
                                     size_t most_partials = 100'000);

// FrontWithin holds the plans that take at most a given number of seconds per token and cost least for their bytes.
struct FrontWithin {
  std::vector<Plan> plans;
  double gap = 0;  // no plan costs more than (1 + gap) times the least possible; 0 if all are proven optimal
};
// Returns such plans by ascending bytes, from the smallest to the best. Each is the optimum (least_within) for its
// own bytes. Neighbours differ by the share `resolution` of their bytes, or no other plan lies between them. The
// front is empty if no plan is fast enough. The table must have decode times.
FrontWithin front_within(const SensitivityTable& table, Cost cost, double seconds, double resolution);

}  // namespace fidelio
