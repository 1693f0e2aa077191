// grammar: JSON values as JSON Schema sees them.
#pragma once
#include <cstdint>
#include <string>

#include "grammar/decimal.h"
#include "grammar/schema/document.h"

namespace fidelio::grammar {

bool is_same(const Json& a, const Json& b);  // 1 is 1.0, and the order of an object's members does not matter
Decimal decimal_in(const Json& number);
// JSON's reader keeps integers of 64 bits and floating point numbers; what was written as a larger integer is not known.
bool keeps_digits(const Json& value);
std::string written(const Json& value);  // as JSON on one line

}  // namespace fidelio::grammar
