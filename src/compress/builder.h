// Plan -> Built: the weights as they are written.
#pragma once
#include <optional>

#include "compress/desk/runners.h"
#include "compress/tune/plan_tuner.h"
#include "sensitivity/candidates.h"

namespace fidelio {

struct Built {
  std::vector<int> choice;                   // of the plan
  std::map<LinearId, LinearWeight> weights;  // of the linears that do not stay as the source has them
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
  // Candidates were made for the source's own activations, so that any of them fits any other; a plan is quantised once
  // more, layer by layer, every linear against what the ones before it give and towards what the source makes of its own
  // (quant/feedback.h). Embedding and head are the candidates. Where the job asks for it, all of them are then tuned. The journal keeps its stops. The weights are left in force
  // in the desk's served runner; the plan built last is kept.
  const Built& build(const Plan& plan);
  const Built& built() const { return built_; }
  void serve(Runner& runner) const;  // the built plan, on another runner

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
