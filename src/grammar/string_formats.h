// This file gives regular expressions for the keyword `format` of JSON Schema. Every text that they match has the
// format. They leave out rare texts of the format: fractions of seconds beyond six digits, capitals in hexadecimal
// digits, quoted addresses.
#pragma once
#include <string>

namespace fidelio::grammar {

struct StringFormat {
  std::string pattern;  // It matches the whole string.
  // If true, the format is dropped where a pattern or a greatest length is given too, since generators repeat an
  // address or a duration in that form.
  bool gives_way = false;
};

// Returns nullptr for a format that is only an annotation.
const StringFormat* string_format(const std::string& name);

}  // namespace fidelio::grammar
