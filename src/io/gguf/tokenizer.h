// This file converts the tokenizer in the keys of a GGUF file to the files of a Hugging Face folder: tokenizer.json,
// tokenizer_config.json, generation_config.json and chat_template.jinja. The Tokenizer is built from those, so there is
// one kind of tokenizer, whatever it came from.
#pragma once
#include <map>
#include <string>

#include "io/gguf/file.h"

namespace fidelio::gguf {

// Returns the files by name. It converts byte-level BPE ("gpt2") with a splitting that splitting.h knows, and
// SentencePiece's BPE ("llama"), whose merges are recomputed from scores: every cut of a token into two others is a
// merge, the best scores first. Throws Error for any other kind and for a damaged vocabulary.
std::map<std::string, std::string> tokenizer_files(const File& file);

}  // namespace fidelio::gguf
