// This file gives the bytes that each token writes. A token may end inside a character, which decode() can only show as
// U+FFFD.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace fidelio {

// Returns the bytes by id, vocab_size() of them. They are empty for special tokens and ids without a token. The texts
// are those inside an answer; a decoder that removes a space from the beginning of a text must be applied to the joined
// bytes.
std::vector<std::string> bytes_of_tokens(const Tokenizer& tokenizer);

}  // namespace fidelio
