// grammar: the keyword format of JSON Schema as regular expressions. What they match is of the format; of what is of it
// they leave out the rare: fractions of seconds beyond six digits, capitals in hexadecimal digits, quoted addresses.
#pragma once
#include <string>

namespace fidelio::grammar {

struct StringFormat {
  std::string pattern;  // of the whole string
  // Generators say an address or a duration once more as a pattern or with a greatest length: that is imposed then.
  bool gives_way = false;
};

// nullptr for a format that only describes.
const StringFormat* string_format(const std::string& name);

}  // namespace fidelio::grammar
