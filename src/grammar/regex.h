// grammar: regular expressions as JavaScript and Python spell them, as far as they are regular: characters, classes,
// groups, |, * + ? {m,n} (lazy ones alike: what matches is the same), \d \w \s and their complements, ^ and $ at the
// ends, look-ahead at the text's beginning. Back-references, other look-around, \b and Unicode properties are refused by
// name.
#pragma once
#include <string_view>

#include "grammar/characters.h"

namespace fidelio::grammar {

// whole: the text is the expression's from end to end; part: it occurs somewhere, where ^ and $ do not say otherwise.
enum class Match : uint8_t { whole, part };

// Throws Error with the place where the pattern cannot be read.
Fragment add_regex(Grammar& grammar, std::string_view pattern, Match match, Writing writing);

}  // namespace fidelio::grammar
