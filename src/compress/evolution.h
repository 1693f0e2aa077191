// Evolution (alloc/evolve.h) of plans whose candidates are put in force and measured on the text of the sensitivities.
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

  // SLQ Algorithm 3: from the widest format everywhere (from the source's own, where that has more KL than the limit)
  // down to where nothing smaller keeps the limit. What it went through, by ascending bytes, each with the KL that was
  // measured; the source's own formats are the last.
  std::vector<Plan> front(double kl_limit);
  // Fewer bytes, or as many with less KL, within the limit; without one, at no more KL than the start has.
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
