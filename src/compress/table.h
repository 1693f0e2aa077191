// The first step: what every group costs in every format.
#pragma once
#include "compress/desk/desk.h"
#include "compress/desk/runners.h"
#include "sensitivity/candidates.h"
#include "sensitivity/journal.h"

namespace fidelio {

struct UniformPoint {  // every group in one format, on the text of the sensitivities
  std::string format;
  double bits = 0, kl = 0, ear = 0;
};
struct Measured {
  SensitivityTable table;
  std::vector<UniformPoint> uniform;
  int64_t next_place = 0;  // of measurements after these
};
// Uniform plans first: they give c of 1 - EAR = c sqrt(KL), and say which formats lie so far from the targets that no
// plan would use them. Then the groups, by the job's method; then what each is in the source is offered at no cost.
Measured measure_table(Desk& desk, Runners& runners, const CandidateSet& candidates, Journal& journal);

}  // namespace fidelio
