// Texts that fidelity is measured on.
#pragma once
#include <string>
#include <vector>

#include "eval/fidelity/perplexity.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio::app {

// Files of text, tokenised whole without special tokens, as in the protocols of eval/fidelity/perplexity.h.
std::vector<EvalText> read_texts(const std::vector<std::string>& files, const Tokenizer& tokenizer);

// A text that comes with the program: in models/data of the source, or where it was installed
// (PREFIX/share/fidelio/data). Throws Error naming both places if it is in neither.
std::string bundled_text(const std::string& name);

}  // namespace fidelio::app
