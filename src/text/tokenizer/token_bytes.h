// What each token writes, as bytes: a token may end inside a character, which decode() can only show as U+FFFD.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace fidelio {

// By id, vocab_size() of them; empty for special tokens and ids without a token. Texts are those inside an answer:
// a decoder that takes a space from the beginning of a text does so of the joined bytes.
std::vector<std::string> bytes_of_tokens(const Tokenizer& tokenizer);

}  // namespace fidelio
