#include "grammar/decimal.h"

#include <array>
#include <charconv>
#include <cmath>

namespace fidelio::grammar {

Decimal decimal_of(double x) {
  if (x == 0) return {"", 0};
  std::array<char, 40> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), x, std::chars_format::scientific).ptr;
  const std::string written(text.data(), end);  // "d.ddde-dd" or "de+dd"
  const size_t e = written.find('e');
  Decimal decimal{written.substr(0, 1), std::stoi(written.substr(e + 1)) + 1};
  if (e > 2) decimal.digits += written.substr(2, e - 2);
  decimal.digits.erase(decimal.digits.find_last_not_of('0') + 1);
  return decimal;
}

}  // namespace fidelio::grammar
