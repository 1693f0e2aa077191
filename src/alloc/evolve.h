// Evolutionary search over plans with measured quality (SLQ appendix A.4, Algorithm 3 and equation 9): the least bytes
// whose measured KL stays below a threshold, from a plan of many bytes downwards. Needs no sensitivities and many
// measurements. Started from the knapsack's answer it is a check on it.
#pragma once
#include <functional>

#include "alloc/plan.h"

namespace fidelio {

struct EvolveOptions {
  double kl_limit = 0;    // tau
  int generations = 30;   // at most: it ends when neither generations nor a curation find anything better
  int offspring = 16;     // lambda
  int stall_limit = 4;    // generations without progress before curation
  double penalty = 1000;  // gamma of equation 9
  uint64_t seed = 0;
  // Survivors and share of the text per selection stage; the last stage measures on all of it.
  std::vector<std::pair<int, double>> stages = {{4, 0.25}, {1, 1.0}};
};

// Measured KL of a plan on a share in (0, 1] of the search text.
using MeasureKl = std::function<double(const Plan& plan, double share)>;

struct Evolution {
  Plan best;
  double kl = 0;  // measured on all of the search text
  int measurements = 0, generations = 0;
  // All parents in turn, the start first and `best` last: no larger than the one before, each with the KL that was
  // measured of it.
  std::vector<Plan> path;
};

Evolution evolve(const SensitivityTable& table, const Plan& start, const EvolveOptions& options,
                 const MeasureKl& measure);

}  // namespace fidelio
