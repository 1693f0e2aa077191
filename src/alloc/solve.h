// The multiple-choice knapsack: one format per group, least cost within a budget of bytes (SLQ section 3.3, "Bitwidth
// Allocation").
#pragma once
#include <optional>

#include "alloc/plan.h"

namespace fidelio {

enum class Cost : uint8_t { kl, loss };  // what adds up: KL (default: it does), or 1 - EAR (the paper's; it does not)

// Every plan that no other plan beats in both bytes and cost, by ascending bytes. Exact: dynamic programming over
// groups, keeping undominated partial sums. Bytes are coarse (multiples of a group's row bytes), so fronts stay in the
// thousands.
std::vector<Plan> pareto_front(const SensitivityTable& table, Cost cost);

// The cheapest plan of at most `bytes`, or the smallest of at most `cost`, out of a front; empty if none is.
std::optional<Plan> best_within_bytes(const std::vector<Plan>& front, int64_t bytes);
std::optional<Plan> smallest_within_cost(const std::vector<Plan>& front, Cost cost, double limit);

// The same as an integer linear program (CBC), which takes any further linear constraint sum over groups of
// weight[group][option] <= limit, e.g. decode time. Empty if infeasible.
struct SideConstraint {
  std::vector<std::vector<double>> weight;  // (groups, options)
  double limit = 0;
};
std::optional<Plan> solve_ilp(const SensitivityTable& table, Cost cost, int64_t bytes,
                              const std::vector<SideConstraint>& sides = {});

}  // namespace fidelio
