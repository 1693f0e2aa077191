// This file splits the source of a template into tokens and handles white-space control. Only the sources of this
// folder include it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fidelio::jinja {

struct Token {
  enum class Kind { text, open_print, close_print, open_block, close_block, name, string, integer, number, sign, end };
  Kind kind = Kind::end;
  std::string text;
  int line = 0;
};

std::vector<Token> tokenize(std::string_view source);

}  // namespace fidelio::jinja
