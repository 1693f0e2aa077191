// This file compares and writes JSON values as JSON Schema sees them.
#pragma once
#include <cstdint>
#include <string>

#include "grammar/decimal.h"
#include "grammar/schema/document.h"

namespace fidelio::grammar {

bool is_same(const Json& a, const Json& b);  // 1 equals 1.0, and the order of an object's members does not matter.
Decimal decimal_in(const Json& number);
// Tells whether the number is known exactly. JSON's reader keeps 64-bit integers and floating-point numbers; larger
// integers lose digits.
bool keeps_digits(const Json& value);
std::string written(const Json& value);  // It writes JSON on one line.

}  // namespace fidelio::grammar
