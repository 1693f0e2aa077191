// The multiple-choice knapsack: one format per group, least cost within budgets (SLQ section 3.3, "Bitwidth
// Allocation").
#pragma once
#include <optional>
#include <span>

#include "alloc/plan.h"

namespace fidelio {

enum class Cost : uint8_t { kl, loss };  // what adds up: KL (default: it does), or 1 - EAR (the paper's; it does not)

// Every plan that no other plan beats in both bytes and cost, by ascending bytes. Exact: dynamic programming over
// groups, keeping undominated partial sums. Bytes are coarse (multiples of a group's row bytes), so fronts stay in the
// thousands.
std::vector<Plan> pareto_front(const SensitivityTable& table, Cost cost);

// The cheapest plan of at most `bytes` out of a front; empty if none is.
std::optional<Plan> best_within_bytes(const std::vector<Plan>& front, int64_t bytes);

// What adds up over a plan. Seconds need a table with decode times.
enum class Quantity : uint8_t { bytes, seconds, kl, loss };
double amount(const Plan& plan, Quantity quantity);

struct Limit {
  Quantity quantity = Quantity::bytes;
  double most = 0;  // of the whole plan, what no group holds included
};

struct Solution {
  Plan plan;
  double bound =
      0;  // no plan within the limits has less: what the plan itself has, where that is proven to be the least
};

// The plan that has the least of one quantity within at most two limits on others; empty if no plan is within them.
//
// Prices for the limits (Lagrange multipliers) that make the bound
//     sum over groups of min over options (cost + price * weight)  -  price * limit
// largest say of each option by how much a plan that takes it must lie above the bound. Options are then tried together
// that lie above it by at most so much, and so much is raised until a plan is found within it: there is none better.
// Partial plans that another one beats in all three sums are dropped, so that groups of the same shape, which weigh the
// same, do not multiply. Where more than `most_partials` are left, those that lie least above the bound are kept, and
// the solution's bound is what the first of the others has.
std::optional<Solution> least_within(const SensitivityTable& table, Quantity least, std::span<const Limit> limits,
                                     size_t most_partials = 100'000);

// Plans of at most so many seconds a token that cost least for their bytes, by ascending bytes, from the smallest to the
// best. Every one is least_within its own bytes; neighbours differ by this share of their bytes, or are next to each
// other. Empty if no plan is as fast.
struct FrontWithin {
  std::vector<Plan> plans;
  double gap = 0;  // no plan costs more than (1 + gap) times the least there can be; 0: all are proven
};
FrontWithin front_within(const SensitivityTable& table, Cost cost, double seconds, double resolution);

}  // namespace fidelio
