// The rows of a batch that are of one kind, as a batch of their own: for backends that compute output rows and prompt
// rows by kernels of different families, in two steps (Backend's kOneKindAStep).
#pragma once
#include <vector>

#include "kernels/backend.h"

namespace fidelio {

bool has_both_kinds(const Batch& batch);

struct BatchPart {
  Batch batch;
  std::vector<size_t> places;  // of its logit rows among those of the whole
};
// Fills `part`, which keeps its memory.
void take_kind(const Batch& whole, RowKind kind, BatchPart& part);

}  // namespace fidelio
