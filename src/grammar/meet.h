// This file computes the intersection and the difference of two expressions.
#pragma once
#include <optional>

#include "grammar/grammar.h"

namespace fidelio::grammar {

enum class Meet : uint8_t { both, without };

// Returns a fragment for the texts that `a` reads and `b` reads too (both) or does not (without). It is empty where
// there is no such text. Neither may call a rule. Throws Error where the result takes too many states.
std::optional<Fragment> meet(Grammar& grammar, Fragment a, Fragment b, Meet kind);

}  // namespace fidelio::grammar
