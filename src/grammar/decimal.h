// This file represents the numbers of a schema by all their digits, so they are compared and divided exactly.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fidelio::grammar {

// The number is 0.d1 d2 d3 .. times ten to the power of `before`, which is the number of its digits before the point.
struct Decimal {
  std::string digits{};  // The first and the last digit are not 0; the number 0 has none.
  int64_t before = 0;
  bool negative = false;

  bool whole() const { return static_cast<int64_t>(digits.size()) <= before; }
  // This counts the digits after the point.
  int64_t places() const { return whole() ? 0 : static_cast<int64_t>(digits.size()) - before; }
};

Decimal decimal_of(std::string_view written);      // `written` is a number in the form of JSON.
int compared(const Decimal& a, const Decimal& b);  // It is below, at or above 0, as a is to b.
// These are the digits before the point, or "0" where there are none, without the sign.
std::string whole_digits(const Decimal& d);
// This is |d| times ten to the power of `places`; it is empty above 10^18.
std::optional<int64_t> scaled(const Decimal& d, int64_t places);
bool is_multiple(const Decimal& d, const Decimal& unit);  // It throws Error for a unit of more than 18 digits.

}  // namespace fidelio::grammar
