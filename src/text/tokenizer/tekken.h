// This file converts Mistral's own tokenizer file, tekken.json, to an equivalent tokenizer.json. Ids, words and control
// tokens are those of mistral-common, and of transformers, which converts it in the same way. As in mistral-common, <s>
// is put before a text.
#pragma once
#include <string>
#include <string_view>

#include "core/foreign/text_files.h"

namespace fidelio::tokenization {

inline constexpr const char* kTekkenFile = "tekken.json";

// Tells whether the folder has a tekken.json in place of a tokenizer.json.
bool is_tekken_folder(const TextFiles& files);

// Throws Error naming the field that is missing or wrong.
std::string tokenizer_json_of_tekken(std::string_view tekken);

}  // namespace fidelio::tokenization
