// Choosing tokens where the logits are: the choices of kernels/choice.h, bit for bit those of the host.
#pragma once
#include <cstdint>

struct CUstream_st;

namespace fidelio::cuda {

using Stream = CUstream_st*;

// LogitChange and ChoiceRule of kernels/choice.h as device memory holds them; a rule's changes are consecutive.
struct DeviceChange {
  int32_t id;
  uint32_t repeated;
  float less, more;
};
struct DeviceRule {
  double repetition, top_p;
  uint64_t random;
  int64_t top_k;
  float scale, farthest;
  int32_t first_change, changes;
  uint32_t greedy, wants_probability;
};
struct DeviceChoice {
  uint64_t total;
  int32_t id;
  float logit, top;
};

// choices (rows) from logits (rows, v), which are left as they were. Rules, choices and `from` may lie in page-locked
// memory of the host. `saved` has room for a float for each change.
void choose(Stream stream, float* logits, int64_t v, int64_t rows, const DeviceRule* rules, const DeviceChange* changes,
            float* saved, DeviceChoice* choices);
// ids[i] = the choice at from[i], where that is >= 0; token 0 where it is of a row that had no best.
void feed_tokens(Stream stream, const DeviceChoice* choices, const int32_t* from, int64_t rows, int32_t* ids);

}  // namespace fidelio::cuda
