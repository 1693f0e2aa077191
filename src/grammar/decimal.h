// grammar: the numbers of a schema as their digits, as many as there are, compared and divided exactly.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fidelio::grammar {

// The number is 0.d1 d2 d3 .. times ten to the power of `before`, the number of its digits before the point.
struct Decimal {
  std::string digits{};  // They begin and end with others than 0; the number 0 has none.
  int64_t before = 0;
  bool negative = false;

  bool whole() const { return static_cast<int64_t>(digits.size()) <= before; }
  int64_t places() const { return whole() ? 0 : static_cast<int64_t>(digits.size()) - before; }  // behind the point
};

Decimal decimal_of(std::string_view written);      // as JSON writes a number
int compared(const Decimal& a, const Decimal& b);  // below, at or above 0, as a is to b
std::string whole_digits(const Decimal& d);        // before the point, "0" where there are none; without the sign
std::optional<int64_t> scaled(const Decimal& d, int64_t places);  // |d| times ten to `places`; none: above 10^18
bool is_multiple(const Decimal& d, const Decimal& unit);          // Throws Error for a unit of more than 18 digits.

}  // namespace fidelio::grammar
