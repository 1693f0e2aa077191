// This file is the first step of a compression. It measures how much every group costs in every format.
#pragma once
#include "compress/desk/desk.h"
#include "compress/desk/runners.h"
#include "sensitivity/candidates.h"
#include "sensitivity/journal.h"

namespace fidelio {

// A UniformPoint is the measurement of every group in one format, on the text of the sensitivities.
struct UniformPoint {
  std::string format;
  double bits = 0, kl = 0, ear = 0;
};
struct Measured {
  SensitivityTable table;
  std::vector<UniformPoint> uniform;
  int64_t next_place = 0;  // the place of the next measurement (Game::place)
};
// Measures the table. Uniform plans come first: they give c of 1 - EAR = c sqrt(KL), and say which formats lie so far
// from the targets that no plan would use them. The groups follow, by the job's method. At last the format that a group
// has in the source is offered at no cost.
Measured measure_table(Desk& desk, Runners& runners, const CandidateSet& candidates, Journal& journal);

}  // namespace fidelio
