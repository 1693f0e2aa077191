// A Builder makes the weights of a plan as they are written into a checkpoint.
#pragma once
#include <optional>

#include "compress/desk/runners.h"
#include "compress/tune/plan_tuner.h"
#include "sensitivity/candidates.h"

namespace fidelio {

struct Built {
  std::vector<int> choice;                   // the plan that was built (Plan::choice)
  std::map<LinearId, LinearWeight> weights;  // only linears that do not stay as the source has them
  std::optional<PlanTuning> tuned;           // how they were tuned; nothing if they were not
  double gain() const { return tuned ? tuned->gain() : 1; }
};

class Builder {
 public:
  Builder(Desk& desk, Runners& runners, const SensitivityTable& table, const CandidateSet& candidates, Journal& journal)
      : desk_(desk),
        runners_(runners),
        table_(table),
        candidates_(candidates),
        journal_(journal),
        tuner_(desk, journal) {}
  // Builds a plan, unless it is the one that was built last. Candidates were made for the source's own activations, so
  // that any of them fits any other. A plan is therefore quantised once more, layer by layer: every linear is fitted to
  // the inputs that the quantised layers before it give, and to the outputs that the source makes of its own inputs
  // (quant/feedback.h). Embedding and head are taken from the candidates. If the job asks for it, all weights are tuned
  // afterwards. The journal keeps what was finished, and the weights are left in force in the served runner.
  const Built& build(const Plan& plan);
  const Built& built() const { return built_; }
  void serve(Runner& runner) const;  // Puts the plan that was built into another runner.

 private:
  void tune(const std::string& name, const Plan& plan);
  Desk& desk_;
  Runners& runners_;
  const SensitivityTable& table_;
  const CandidateSet& candidates_;
  Journal& journal_;
  PlanTuner tuner_;
  Built built_;
  std::optional<Runners::InForce> in_force_;  // the plan built last, in the served runner
};

}  // namespace fidelio
