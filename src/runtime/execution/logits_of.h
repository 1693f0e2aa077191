// This file computes the logits of every position of one sequence, for whoever compares models or looks into one.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/runner.h"

namespace fidelio {

// Passes the logits of all positions on, from the first one, some rows of (rows, v) at a time. They are computed as
// output rows, as decoding computes them. The runner's cache must hold the whole sequence, and what it held is lost.
// Throws Error if there is no id, or one outside the vocabulary.
void for_logits(Runner& runner, std::span<const int32_t> ids, Reading reading,
                const std::function<void(std::span<const float>)>& take);

}  // namespace fidelio
