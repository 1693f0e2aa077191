// This file reads numbers within bounds, as JSON writes them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "grammar/decimal.h"
#include "grammar/grammar.h"

namespace fidelio::grammar {

// Numbers with a fraction have at most this many digits, others at most this many before the point where no bound has
// more. Clients keep numbers as floating-point ones, which tell all numbers of so many digits apart: what is no
// integer, or above a bound, is so for them, too. Of 150000080001105.0095 they would make an integer.
inline constexpr int kPlaces = 15;

struct Bound {
  Decimal value;
  bool excluded = false;
};
struct Bounds {
  std::optional<Bound> low{}, high{};
  bool none() const { return !low && !high; }
  void raise(const Bound& to);  // It changes the bound only where `to` is tighter.
  void lower(const Bound& to);
  bool hold(const Decimal& d) const;
  bool empty(bool integer) const;
  // Returns the intervals that are left when the unwanted numbers are taken out.
  std::vector<Bounds> without(std::vector<Decimal> unwanted) const;
};

Fragment any_integer(Grammar& grammar);  // It has at most 15 digits.
Fragment any_number(Grammar& grammar);   // It has at most 15 further digits and an exponent of two digits.
// Read the numbers within bounds, without exponents. Throw Error where there is none. With a fraction they have at most
// 15 digits, without one as many, or as many as a bound of up to 40 digits has.
Fragment bounded_integer(Grammar& grammar, const Bounds& bounds);
Fragment bounded_number(Grammar& grammar, const Bounds& bounds);
// Reads numbers, with or without a sign and a fraction, that are whole multiples of `unit` (above 0). Multiples of
// 0.25, for example, are tracked by the remainder of their digits modulo 25. If only integers are read, the multiples
// of 2.5 are those of 5. Throws Error where this takes too many states. Returns nothing where every integer is a
// multiple.
std::optional<Fragment> multiples(Grammar& grammar, const Decimal& unit, bool integer);

}  // namespace fidelio::grammar
