// grammar: sets of characters (code points), and the bytes that write them: as UTF-8, or inside a JSON string.
#pragma once
#include <vector>

#include "grammar/grammar.h"

namespace fidelio::grammar {

struct CharRange {
  char32_t low, high;
};
// Ranges in order that do not touch; surrogates are in none.
using CharSet = std::vector<CharRange>;

CharSet normalised(CharSet set);
CharSet complement(const CharSet& set);
CharSet every_character();

enum class Writing : uint8_t { utf8, json_string };
// One character of the set. In a JSON string `"`, `\` and control characters are written by their short escapes or
// as \u00XX; other characters as they are.
Fragment one_of(Grammar& grammar, const CharSet& set, Writing writing);

// Any character inside a JSON string, escaped ones too; of \u escapes those of no surrogate.
Fragment string_character(Grammar& grammar);

}  // namespace fidelio::grammar
