// grammar: numbers within bounds, as JSON writes them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "grammar/decimal.h"
#include "grammar/grammar.h"

namespace fidelio::grammar {

inline constexpr int kPlaces = 15;  // the most digits before the point where no bound has more, and the most behind it

struct Bound {
  Decimal value;
  bool excluded = false;
};
struct Bounds {
  std::optional<Bound> low{}, high{};
  bool none() const { return !low && !high; }
  void raise(const Bound& to);  // The bound is left where it is closer already.
  void lower(const Bound& to);
  bool hold(const Decimal& d) const;
  bool empty(bool integer) const;
  // The bounds beside and between numbers that are not wanted.
  std::vector<Bounds> without(std::vector<Decimal> unwanted) const;
};

Fragment any_integer(Grammar& grammar);  // of at most 15 digits
Fragment any_number(Grammar& grammar);   // with at most 15 further digits and an exponent of two
// Those within bounds, without exponents; Error where there is none. They have at most 15 digits before the point, or as many as
// a bound of up to 40 digits, and 15 behind it.
Fragment bounded_integer(Grammar& grammar, const Bounds& bounds);
Fragment bounded_number(Grammar& grammar, const Bounds& bounds);
// Texts of digits, with a sign and a fraction or without, whose number is `unit` (above 0) times a whole one: the multiples
// of 0.25 are remembered by what their digits leave when divided by 25. Of integers alone the multiples of 2.5 are those of 5.
// Throws Error where that takes too many states; none: every integer is a multiple.
std::optional<Fragment> multiples(Grammar& grammar, const Decimal& unit, bool integer);

}  // namespace fidelio::grammar
