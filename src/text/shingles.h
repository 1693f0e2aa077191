// This file computes the shingles of a text: every run of thirteen words, as a number. Texts that share shingles are
// partial copies of each other, however they are cut into documents, given headings, wrapped into lines or quoted.
//
//   "On 3 May the pump was shut down and the valve behind it replaced by hand"
//    |------------------- shingle 1 --------------------------|
//       |------------------ shingle 2 ----------------------------|
//          ...
//
// Thirteen words is the length that is usual when training text is searched for test text: shorter runs are idioms that
// texts share by chance, and longer ones miss copies with small edits. Words are used and not the tokens of a model,
// because a line end, a quotation mark or another tokenizer changes tokens, and none of these changes a word.
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
