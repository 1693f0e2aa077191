// The whole way: a Job in a World to certified checkpoints.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "compress/job.h"
#include "ranks/ranks.h"

namespace fidelio {

// Memory first, before anything large is made; then time. {memory, gpu_memory, seconds}
nlohmann::json foresee(const Job& job, const World& world, const Ranks& ranks);

// Writes the checkpoints, and says what became of each: {output, file_bytes, source_file_bytes, parameters,
// bits_per_parameter, plan, certificate, beside, seconds}, or {targets: [such, ...]} for several. Null on all ranks but
// the first. Throws Error where a target is missed; what was made stays in OUT.journal until all are written.
nlohmann::json compress(const Job& job, const World& world, const Ranks& ranks);

}  // namespace fidelio
