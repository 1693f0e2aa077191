// A PlanEvolution improves plans by evolution (alloc/evolve.h). It puts their candidates in force in the reference and
// measures them on the text of the sensitivities.
#pragma once
#include "alloc/evolve.h"
#include "compress/table.h"

namespace fidelio {

class PlanEvolution {
 public:
  PlanEvolution(Desk& desk, Runners& runners, const Measured& measured, const CandidateSet& candidates,
                Journal& journal)
      : desk_(desk),
        runners_(runners),
        table_(measured.table),
        candidates_(candidates),
        journal_(journal),
        next_place_(measured.next_place) {}

  // Runs SLQ Algorithm 3 from the widest format everywhere down to where nothing smaller keeps the limit. It starts
  // from the source's own formats if the widest format has more KL than the limit. Returns the plans that it went
  // through, by ascending bytes, each with its measured KL. The source's own formats are the last.
  std::vector<Plan> front(double kl_limit);
  // Returns a plan with fewer bytes than the start, or as many with less KL, within the limit. Without a limit, the
  // plan has no more KL than the start.
  Plan onwards(const Plan& start, std::optional<double> kl_limit = {});

 private:
  Evolution from(const Plan& start, std::optional<double> kl_limit, int generations);
  Plan widest(bool of_source) const;

  Desk& desk_;
  Runners& runners_;
  const SensitivityTable& table_;
  const CandidateSet& candidates_;
  Journal& journal_;
  int64_t next_place_ = 0;
};

}  // namespace fidelio
