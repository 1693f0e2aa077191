// grammar: a double as the shortest decimal that is read back as it, which is what a schema's author wrote.
#pragma once
#include <string>

namespace fidelio::grammar {

// 0.d1 d2 d3 .. times ten to the power of `before`: digits begin and end with others than 0 (of 0: none).
struct Decimal {
  std::string digits;
  int before;  // of the digits stand before the point; negative: so many zeros stand between the point and them
};

Decimal decimal_of(double not_negative);

}  // namespace fidelio::grammar
