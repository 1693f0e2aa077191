// Mistral's own tokenizer file, tekken.json, as the tokenizer.json that says the same: ids, words and control tokens are those
// of mistral-common, and of transformers, which makes the same of it. As mistral-common does, <s> is put before a text.
#pragma once
#include <string>
#include <string_view>

#include "core/foreign/text_files.h"

namespace fidelio::tokenization {

inline constexpr const char* kTekkenFile = "tekken.json";

// It is what the folder has in place of a tokenizer.json.
bool is_tekken_folder(const TextFiles& files);

// Throws Error naming the field that is missing or wrong.
std::string tokenizer_json_of_tekken(std::string_view tekken);

}  // namespace fidelio::tokenization
