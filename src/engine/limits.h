// This file tells an engine's limits: how many rows, sequences, pages and states its runner has room for.
#pragma once
#include "engine/engine.h"

namespace fidelio {

// Returns the most output rows of a step. Where a model keeps states, a batch must have room for a chunk of a prompt
// besides, because prompts are not cut elsewhere. Throws Error if it has none.
int64_t most_outputs(const Runner& runner);

// Gives a runner the slots for the states of sequences, as the options say, and returns the scheduler's limits.
SchedulerLimits limits_of(Runner& runner, const EngineOptions& options);

}  // namespace fidelio
