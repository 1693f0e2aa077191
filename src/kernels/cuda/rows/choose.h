// This file chooses tokens on the device that has the logits: the choices of step/choice.h, bit for bit those of
// the host.
#pragma once
#include <cstdint>

struct CUstream_st;

namespace fidelio::cuda {

using Stream = CUstream_st*;

// These are LogitChange and ChoiceRule of step/choice.h as device memory holds them. The changes of a rule are
// consecutive.
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

// Writes choices (rows) for logits (rows, v), which are unchanged afterwards. Rules, choices and `from` may lie in
// page-locked memory of the host. `saved` has room for one float for each change.
void choose(Stream stream, float* logits, int64_t v, int64_t rows, const DeviceRule* rules, const DeviceChange* changes,
            float* saved, DeviceChoice* choices);
// Sets ids[i] to the choice at from[i], if that is >= 0. If that row had no best token, it is token 0.
void feed_tokens(Stream stream, const DeviceChoice* choices, const int32_t* from, int64_t rows, int32_t* ids);

}  // namespace fidelio::cuda
