// Shingles: every thirteen words in a row of a text, as numbers. Texts that share shingles are copies of each other in
// part, however they are cut into documents, headed, wrapped into lines or quoted.
//
//   "On 3 May the pump was shut down and the valve behind it replaced by hand"
//    |------------------- shingle 1 --------------------------|
//       |------------------ shingle 2 ----------------------------|
//          ...
//
// Thirteen words is the length by which text of tests is usually sought in text for training: shorter ones are idioms
// that texts share by chance, and a longer one misses what was edited here and there. Words and not a model's tokens,
// because a line's end, a quotation mark or another tokenizer changes tokens, and none of these changes a word.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fidelio {

inline constexpr size_t kShingleWords = 13;

// Returns the hash of every shingle of a text in UTF-8 once, in ascending order. A word is a run of letters, marks and
// digits, in lower case; a character of a script that is written without spaces (Chinese, Japanese) is a word of its
// own. A text of fewer than thirteen words is one shingle, and one without any word has none.
std::vector<uint64_t> shingles_of(std::string_view text);

}  // namespace fidelio
