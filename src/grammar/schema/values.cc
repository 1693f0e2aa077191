#include "grammar/schema/values.h"

#include <algorithm>
#include <cmath>

namespace fidelio::grammar {

bool is_same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return compared(decimal_in(a), decimal_in(b)) == 0;
  if (a.type() != b.type()) return false;
  if (!a.is_structured()) return a == b;
  if (a.size() != b.size()) return false;
  if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), is_same);
  return std::all_of(a.items().begin(), a.items().end(), [&](const auto& member) {
    const auto found = b.find(member.key());
    return found != b.end() && is_same(member.value(), *found);
  });
}

Decimal decimal_in(const Json& number) { return decimal_of(number.dump()); }

bool keeps_digits(const Json& value) {
  if (value.is_structured()) return std::all_of(value.begin(), value.end(), keeps_digits);
  return !value.is_number_float() || std::abs(value.get<double>()) < 0x1p63;
}

std::string written(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace fidelio::grammar
