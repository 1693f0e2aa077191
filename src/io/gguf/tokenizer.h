// The tokenizer in a GGUF file's keys, as the files a Hugging Face folder would have: tokenizer.json,
// tokenizer_config.json, generation_config.json and chat_template.jinja. The Tokenizer is built from those, so there is
// one kind of tokenizer, whatever it came from.
#pragma once
#include <map>
#include <string>

#include "io/gguf/file.h"

namespace fidelio::gguf {

// By file name. Byte-level BPE ("gpt2") with a splitting that splitting.h knows, and SentencePiece's BPE ("llama"),
// whose merges are remade from scores: a token made of two others by every cut of it, the best scores first. Throws
// Error for any other kind and for a vocabulary that is damaged.
std::map<std::string, std::string> tokenizer_files(const File& file);

}  // namespace fidelio::gguf
