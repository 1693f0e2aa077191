// grammar: what two expressions read together, and what one reads and another does not.
#pragma once
#include <optional>

#include "grammar/grammar.h"

namespace fidelio::grammar {

enum class Meet : uint8_t { both, without };

// Texts that `a` reads and `b` does too, or does not (without); none where there is no such text. Neither calls a
// rule. Throws Error where it takes too many states.
std::optional<Fragment> meet(Grammar& grammar, Fragment a, Fragment b, Meet kind);

}  // namespace fidelio::grammar
