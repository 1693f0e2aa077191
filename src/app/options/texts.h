// Texts that fidelity is measured on.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "compress/certificate/certificate.h"
#include "eval/fidelity/perplexity.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio::app {

// Files of text, tokenised whole without special tokens, as in the protocols of eval/fidelity/perplexity.h.
std::vector<EvalText> read_texts(const std::vector<std::string>& files, const Tokenizer& tokenizer);

// The texts that suit a model: for the two quills, which know only documentation and exercises, the documentation that
// they were not trained on; for every other model documentation, prose, code and chat (models/data/README.md). A model
// is a quill if its tokenizer is. `model`: its folder or file.
struct BundledTexts {
  std::string calibration, heldout;  // as parse_text_source takes them
};
BundledTexts bundled_texts(const std::string& model);

// Checks an argument that parse_text_source takes; the second one takes the words of runtime/texts/words.h as well.
CLI::Validator text_source();
CLI::Validator text_source_or_word();
// Words alone say nothing of other text: `bundled`, the text that suits the model, then comes before them.
std::vector<std::string> beside_words(std::vector<std::string> asked, const std::string& bundled);

// A line for each domain of a certificate.
void print_domains(const Certificate& certificate);
// Prints what the certificate says to somebody who does not know its figures, a line each (compress/certificate/words.h
// says what `kept` is).
void print_plain_words(const Certificate& certificate, bool kept);

}  // namespace fidelio::app
