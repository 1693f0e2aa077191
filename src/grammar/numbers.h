// grammar: numbers within bounds, as JSON writes them.
#pragma once
#include <optional>
#include <string>

#include "grammar/grammar.h"

namespace fidelio::grammar {

// A double as the shortest decimal that is read back as it, which is what a schema's author wrote: 0.d1 d2 d3 .. times ten
// to the power of `before`, the number of digits before the point. Digits begin and end with others than 0 (of 0: none).
struct Decimal {
  std::string digits;
  int before;
};
Decimal decimal_of(double not_negative);

inline constexpr int kPlaces = 15;  // the most digits before the point, and the most behind it

struct Bounds {
  std::optional<double> low{}, high{};
  bool low_excluded = false, high_excluded = false;
  bool none() const { return !low && !high; }
};

Fragment any_integer(Grammar& grammar);  // of at most 15 digits
Fragment any_number(Grammar& grammar);   // with at most 15 further digits and an exponent of two
// Those within bounds, without exponents; Error where there is none. Of at most 15 digits before the point and behind it.
Fragment bounded_integer(Grammar& grammar, const Bounds& bounds);
Fragment bounded_number(Grammar& grammar, const Bounds& bounds);
// Texts of digits, with a sign and a fraction or without, whose number is `unit` (above 0) times a whole one: the multiples
// of 0.25 are remembered by what their digits leave when divided by 25. Throws Error where that takes too many states.
Fragment multiples(Grammar& grammar, double unit);

}  // namespace fidelio::grammar
