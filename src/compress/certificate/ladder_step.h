// The tests that a plan has passed, as a certificate states them.
//
// Two sequences of plans, their order and the certificate's documents are fixed before the first test:
//
//   expected   the plan that trials foresee to hold, then smaller ones, each tested at kExpectedLevel until one fails
//   larger     only where the first of these fails: larger plans, from the largest down, each tested at kLargerLevel
//              until one fails
//
// The last plan that held is certified. Within a sequence a plan below the target can only be certified if the first
// such plan of the sequence passes its own test, so that each sequence errs as rarely as one test does
// (fixed-sequence testing: Maurer, Hothorn and Lehmacher 1995), and both together in at most kWholeLevel of all runs.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "core/estimate.h"

namespace fidelio {

// The chance, at most, that a plan below the target passes.
inline constexpr double kExpectedLevel = 0.0225, kLargerLevel = 0.0025, kWholeLevel = 0.025;
// A test at a level looks at the promised end of an interval of this confidence, whose two ends have the level each.
constexpr double confidence_at(double level) { return 1 - 2 * level; }

// One plan that was tested on the certificate's documents.
struct LadderStep {
  double bits = 0;         // a weight, of the plan
  Estimate ear, kl, top1;  // what was compared with the target
  bool met = false;
  double level = kExpectedLevel;
};

nlohmann::json to_json(const LadderStep& step);
LadderStep ladder_step_from_json(const nlohmann::json& json);
// Throws Error where these are not the tests, in their order, of the two sequences.
void check_ladder(const std::vector<LadderStep>& ladder);

// The level at which the plan was tested that is certified: the last one that held. Without a ladder one plan was
// tested once, which may err as often as a whole ladder.
double certified_level(const std::vector<LadderStep>& ladder);

}  // namespace fidelio
