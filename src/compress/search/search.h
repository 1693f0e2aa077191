// From a table to a plan that has been looked at on text the search has not seen.
#pragma once
#include <optional>
#include <vector>

#include "alloc/task_calibration.h"
#include "compress/builder.h"
#include "compress/desk/measurer.h"
#include "compress/evolution.h"
#include "compress/rate/pace.h"

namespace fidelio {

// Plans this near in size are not told apart by building both: which weights are rounded which way makes as much of a
// difference.
inline constexpr double kPlanResolution = 0.01;
// Two trials say how far predictions are off. The certificate's ladder (search/ladder.cc) then begins at the plan that is
// predicted by them, which need not be tried itself.
inline constexpr int kTrialsBeforeLadder = 2;

struct TrialPoint {  // a plan that was measured on the way
  double bits = 0, kl = 0;
  Estimate ear;
  double predicted_ear = 0;  // NaN where KL was what was predicted
};
struct Found {
  Target target;  // what was searched for; empty with a size or tasks
  Plan plan;
  FidelityReport certified;        // on the certificate's documents
  std::vector<LadderStep> ladder;  // plans that were tested on them
  std::vector<TrialPoint> trials;
  std::optional<CertifiedTasks> tasks;
  std::optional<MeasuredRate> rate;
};

// Plans among which a search looks, by ascending bytes: the table's Pareto front, or what evolution alone goes through.
std::vector<Plan> plans_to_try(Desk& desk, const SensitivityTable& table, PlanEvolution& evolution, const Pace& pace);

// The two sequences of plans that are tested (certificate/ladder_step.h), both by descending size: `start` and at most
// `most` plans in steps of `step` bits a weight below it; and those that are `larger` bits larger. `parameters`: those that
// plans give formats to.
struct LadderShape {
  std::vector<double> larger;  // descending
  double step = 0;
  int most = 0;
};
struct Ladder {
  std::vector<Plan> expected, larger;
};
Ladder ladder_of(const std::vector<Plan>& front, const Plan& start, int64_t parameters, const LadderShape& shape);

class Search {
 public:
  Search(Desk& desk, Runners& runners, const SensitivityTable& table, PlanEvolution& evolution, Builder& builder,
         Pace& pace);
  Found run(const Target& target);
  // The plans to choose from: those of least distance for their size, of those that are fast enough.
  const std::vector<Plan>& front() const { return front_; }
  Measurer& measurer() { return measurer_; }  // of the plan that run() left in force

 private:
  Plan choose();
  Plan within_budget();
  Plan largest_within_budget() const;
  Plan given();
  Plan found_on_front(const Target& aim);
  Plan found_by_evolution(const Target& aim);
  Measurement trial(const Plan& plan, const std::string& what);
  Measurement test(const Plan& plan, double level = kWholeLevel);
  Ladder ladder(const Plan& start);
  Plan descend(const Plan& start);
  // These serve a target of tasks (search/tasks.cc).
  struct OwnText;
  Plan keep_accuracy(TaskJudge& judge);
  TaskCalibration calibrate(TaskJudge& judge, OwnText& text);
  Measurement trial_on(OwnText& text, const Plan& plan, const std::string& what);

  Desk& desk_;
  Runners& runners_;
  Measurer measurer_;
  const SensitivityTable& table_;
  Pace& pace_;
  std::vector<Plan> front_;
  PlanEvolution& evolution_;
  Builder& builder_;
  double ratio_;  // of a built plan's KL, tuned where it is, to what the table predicts; as the last one had it
  Found found_;
};

}  // namespace fidelio
