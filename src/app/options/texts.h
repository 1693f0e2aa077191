// This file chooses and reads the texts on which fidelity is measured.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "compress/certificate/certificate.h"
#include "eval/fidelity/perplexity.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio::app {

// Reads files of text, tokenised whole without special tokens, as in the protocols of eval/fidelity/perplexity.h.
std::vector<EvalText> read_texts(const std::vector<std::string>& files, const Tokenizer& tokenizer);

// These are the texts that suit a model. For the two quills, which know only documentation and exercises, they are
// documentation that was not used in training; for every other model they are documentation, prose, code and chat
// (models/data/README.md). A model is a quill if its tokenizer is. `model` is its folder or file.
struct BundledTexts {
  std::string calibration, heldout;  // They have the form that parse_text_source takes.
};
BundledTexts bundled_texts(const std::string& model);

// These check an argument that parse_text_source takes. The second also accepts the words of runtime/texts/words.h.
CLI::Validator text_source();
CLI::Validator text_source_or_word();
// Puts `bundled`, the text that suits the model, first where only such words were asked for, as words alone do not
// represent other text.
std::vector<std::string> beside_words(std::vector<std::string> asked, const std::string& bundled);

// Prints a line for each domain of a certificate.
void print_domains(const Certificate& certificate);
// Prints what the certificate says to a person who does not know its figures, a line each (compress/certificate/words.h
// explains `kept`).
void print_plain_words(const Certificate& certificate, bool kept);

}  // namespace fidelio::app
