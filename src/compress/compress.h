// This file is the whole way from a Job in a World to certified checkpoints; job.h shows its steps.
#pragma once
#include "compress/job.h"
#include "compress/report.h"
#include "ranks/ranks.h"

namespace fidelio {

// Says what a compression would need: memory first, before anything large is made, then time. Throws Error where there
// is too little memory or room on disk.
Foreseen foresee(const Job& job, const World& world, const Ranks& ranks);

// Writes the checkpoints and says what became of each. On all ranks but the first the report is empty. Throws Error
// where a target is missed; what was made until then stays in OUT.journal until all checkpoints are written.
CompressReport compress(const Job& job, const World& world, const Ranks& ranks);

}  // namespace fidelio
