#include "engine/limits.h"

#include <algorithm>

#include "core/error.h"

namespace fidelio {

int64_t most_outputs(const Runner& runner) {
  const auto& [rows, logit_rows] = std::pair(runner.options().max_rows, runner.options().max_logit_rows);
  if (runner.program().state.floats() == 0) return std::min(rows, logit_rows);
  check(rows > kStateChunk,
        "batches of {} rows: a model that keeps a state for each sequence needs {}, for a chunk of {} rows of a prompt "
        "and an output",
        rows, kStateChunk + 1, kStateChunk);
  return std::min(rows - kStateChunk, logit_rows);
}

namespace {

// Gives a runner the slots for the states of sequences, and returns how many the engine uses.
int64_t reserve_states(Runner& runner, const EngineOptions& o) {
  const int64_t floats = runner.program().state.floats();
  if (floats == 0) return 0;
  constexpr int64_t kMostBytes = int64_t{2} << 30;
  const int64_t most = most_outputs(runner), sequences = o.max_sequences == 0 ? most : std::min(o.max_sequences, most);
  const int64_t fitting = std::max<int64_t>(2, kMostBytes / (floats * int64_t{sizeof(float)}));
  const int64_t slots =
      o.state_slots > 0 ? o.state_slots : std::min(sequences * o.speculation.states_of_sequence(), fitting);
  runner.reserve_states(slots);
  return slots;
}

}  // namespace

SchedulerLimits limits_of(Runner& runner, const EngineOptions& o) {
  int64_t most = most_outputs(runner);
  const int64_t slots = reserve_states(runner, o);
  if (slots > 0) most = std::min(most, slots);
  return {.max_rows = runner.options().max_rows,
          .max_logit_rows = std::min(runner.options().max_rows, runner.options().max_logit_rows),
          .max_sequences = o.max_sequences == 0 ? most : std::min(o.max_sequences, most),
          .cache_pages = runner.cache_pages(),
          .state_slots = slots,
          .reuse_prefixes = o.reuse_prefixes,
          .kinds_agree = runner.kinds_agree()};
}

}  // namespace fidelio
