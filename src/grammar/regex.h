// This file reads regular expressions as JavaScript and Python spell them, as far as they are regular: characters,
// classes, groups, |, * + ? {m,n} (lazy ones too, as they match the same texts), \d \w \s and their complements, ^ and
// $ at the ends, and look-ahead at the beginning of the text. Back-references, other look-around, \b and Unicode
// properties are refused by name.
#pragma once
#include <string_view>

#include "grammar/characters.h"

namespace fidelio::grammar {

// `whole` means that the expression must match the text from end to end; `part` means that it occurs somewhere in it,
// unless ^ or $ fix the place.
enum class Match : uint8_t { whole, part };

// Adds the expression to the grammar. Throws Error with the place where the pattern cannot be read.
Fragment add_regex(Grammar& grammar, std::string_view pattern, Match match, Writing writing);

}  // namespace fidelio::grammar
