// grammar: numbers within bounds, as JSON writes them.
#pragma once
#include <optional>

#include "grammar/grammar.h"

namespace fidelio::grammar {

struct Bounds {
  std::optional<double> low{}, high{};
  bool low_excluded = false, high_excluded = false;
  bool none() const { return !low && !high; }
};

Fragment any_integer(Grammar& grammar);  // of at most 15 digits
Fragment any_number(Grammar& grammar);   // with at most 15 further digits and an exponent of two
// Those within bounds. Of numbers with a fraction those whose whole unit is within them (0.25 to 0.75 has none of its
// own: Error), without exponents.
Fragment bounded_integer(Grammar& grammar, const Bounds& bounds);
Fragment bounded_number(Grammar& grammar, const Bounds& bounds);

}  // namespace fidelio::grammar
