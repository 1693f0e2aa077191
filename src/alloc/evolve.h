// This file searches for the smallest plan whose measured KL stays below a threshold, by evolution (SLQ appendix A.4,
// Algorithm 3 and equation 9). The search starts from a plan of many bytes and works downwards. It needs no table of
// measured sensitivities, but it needs many measurements. Started from the knapsack's answer, it checks that answer.
#pragma once
#include <functional>

#include "alloc/plan.h"

namespace fidelio {

struct EvolveOptions {
  double kl_limit = 0;  // the threshold tau, in nats per token
  // The search runs at most this many generations. It ends earlier when neither a generation nor a curation step
  // finds a better plan.
  int generations = 30;
  int offspring = 16;     // children per generation (lambda)
  int stall_limit = 4;    // generations without progress before a curation step is tried
  double penalty = 1000;  // the factor gamma of equation 9
  uint64_t seed = 0;
  // Each selection stage gives the number of survivors and the share of the search text that they are measured on.
  // The last stage measures on all of the text.
  std::vector<std::pair<int, double>> stages = {{4, 0.25}, {1, 1.0}};
};

// A MeasureKl returns the measured KL of a plan, in nats per token, on a share in (0, 1] of the search text.
using MeasureKl = std::function<double(const Plan& plan, double share)>;

struct Evolution {
  Plan best;
  double kl = 0;  // the KL of `best`, measured on all of the search text
  int measurements = 0, generations = 0;
  // The path holds all parents in order, with `start` first and `best` last. No plan is larger than the one before
  // it, and each plan's `kl` is the measured one.
  std::vector<Plan> path;
};

// Searches downwards from `start`, whose options are indices into `table`. The byte counts of plans come from the
// table; their quality comes from `measure` alone.
Evolution evolve(const SensitivityTable& table, const Plan& start, const EvolveOptions& options,
                 const MeasureKl& measure);

}  // namespace fidelio
