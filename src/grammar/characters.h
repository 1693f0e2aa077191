// This file defines sets of characters (code points) and the fragments of a grammar that read them, written as UTF-8 or
// inside a JSON string.
#pragma once
#include <vector>

#include "grammar/grammar.h"

namespace fidelio::grammar {

struct CharRange {
  char32_t low, high;
};
// The ranges are in order and do not touch, and surrogates are in none.
using CharSet = std::vector<CharRange>;

CharSet normalised(CharSet set);
CharSet complement(const CharSet& set);
CharSet every_character();

enum class Writing : uint8_t { utf8, json_string };
// Returns a fragment that reads one character of the set. In a JSON string `"`, `\` and control characters are written
// by their short escapes or as \u00XX, and other characters as they are.
Fragment one_of(Grammar& grammar, const CharSet& set, Writing writing);

// Returns a fragment that reads any character inside a JSON string, escaped ones too. \u escapes of surrogates are left
// out.
Fragment string_character(Grammar& grammar);

}  // namespace fidelio::grammar
