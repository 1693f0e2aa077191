// A Search finds the plan for a target, from a table to a plan that was tested on text that the search has not seen.
#pragma once
#include <optional>
#include <vector>

#include "alloc/task_calibration.h"
#include "compress/builder.h"
#include "compress/desk/measurer.h"
#include "compress/evolution.h"
#include "compress/rate/pace.h"

namespace fidelio {

// Plans that differ by less in size (bits a weight) cannot be told apart by building both. The way in which single
// weights are rounded makes as much of a difference.
inline constexpr double kPlanResolution = 0.01;
// Two trials say how far predictions are off, and one does where trials for another target have said so. The
// certificate's ladder (search/ladder.cc) then begins at the plan that they predict, which need not be tried itself. A
// run that goes on after an interruption knows nothing of the trials for targets that were finished before.
inline constexpr int kTrialsBeforeLadder = 2, kTrialsOfOthers = 1;

// A TrialPoint is a plan that was measured on the way.
struct TrialPoint {
  double bits = 0, kl = 0;
  Estimate ear;
  double predicted_ear = 0;  // NaN if KL was predicted instead
};
struct Found {
  Target target;  // the target of the search; empty for a size or tasks
  Plan plan;
  FidelityReport certified;        // the measurement on the certificate's documents
  std::vector<LadderStep> ladder;  // all plans that were tested there
  std::vector<TrialPoint> trials;
  std::optional<CertifiedTasks> tasks;
  std::optional<MeasuredRate> rate;
};

// Returns the plans that a search chooses from, by ascending bytes: the table's Pareto front, or the plans that
// evolution alone goes through.
std::vector<Plan> plans_to_try(Desk& desk, const SensitivityTable& table, PlanEvolution& evolution, const Pace& pace);

// A Ladder is the two sequences of plans that are tested (certificate/ladder_step.h), both by descending size. One is
// `start` and at most `most` plans in steps of `step` bits a weight below it. The other has the plans that are `larger`
// bits larger. `parameters` counts those that plans give formats to.
struct LadderShape {
  std::vector<double> larger;  // bits a weight, descending
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
  // Returns the plans to choose from: of those that are fast enough, the ones of least distance for their size.
  const std::vector<Plan>& front() const { return front_; }
  // Measures the plan that run() left in force.
  Measurer& measurer() { return measurer_; }

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
  std::vector<Trial> known_;  // of the targets before
  double ratio_;              // KL of the plan that was built last over the KL that the table predicts
  Found found_;
};

}  // namespace fidelio
