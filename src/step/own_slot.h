// This file serves callers that feed sequences over several steps without a scheduler. In a model whose sequences keep
// a state (step/state.h), each sequence under way owns a slot of the runner. A step begins from it, and leaves the
// state after its last row there. In other models nothing here does anything.
#pragma once
#include <algorithm>

#include "core/error.h"
#include "step/batch.h"
#include "step/state.h"

namespace fidelio {

// Makes the segment that was appended last continue in `slot`. It begins from `from` where that is another slot.
inline void continue_in_slot(const StateShape& shape, Batch& batch, int32_t slot, int32_t from) {
  if (shape.floats() == 0) return;
  const Segment& segment = batch.segments.back();
  if (segment.position > 0) batch.begin_from(from);
  batch.keep_state(segment.rows - 1, slot);
}
inline void continue_in_slot(const StateShape& shape, Batch& batch, int32_t slot) {
  continue_in_slot(shape, batch, slot, slot);
}

// Returns how many of the `left` rows of a prompt, the first of which stands at `position`, a step of at most `most`
// rows feeds. A prompt that goes on is cut where a chunk ends, so that no row depends on the cut.
inline int64_t rows_of_prompt(const StateShape& shape, int64_t position, int64_t left, int64_t most) {
  if (left <= most || shape.floats() == 0) return std::min(left, most);
  const int64_t rows = (position + most) / kStateChunk * kStateChunk - position;
  check(rows > 0, "batches of {} rows do not hold a chunk of {} rows of a prompt", most, kStateChunk);
  return rows;
}

}  // namespace fidelio
