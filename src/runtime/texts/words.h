// This file defines the words that stand for a text in --text and --calibration. They are words wherever they stand
// alone; a file or folder of such a name is written ./own or ./tools.
//
//   tools    conversations with calls of tools, which come with fidelio; two sets without a template in common
//   own:N    N answers of the model itself, sampled as its authors recommend; own means kOwnDocuments of them
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace fidelio {

inline constexpr int64_t kOwnDocuments = 48, kLeastOwnDocuments = 12, kMostOwnDocuments = 1000;

enum class TextUse : uint8_t { calibration, heldout };

// Tells whether an argument is one of these words. Throws Error as own_documents() does.
bool is_text_word(const std::string& argument);
// Returns how many answers "own" or "own:N" asks for, and nothing for any other argument. Throws Error if N is no
// number or out of range.
std::optional<int64_t> own_documents(const std::string& argument);
// Replaces every word by the path of what it stands for. `own_text` is the path of the model's own answers.
std::vector<std::string> without_words(std::vector<std::string> sources, TextUse use, const std::string& own_text);
// Throws Error if `tools` is among the sources and the model has no chat template, or one that takes no tools.
// `model` is its name, for the message.
void check_takes_words(const std::vector<std::string>& sources, const ChatTemplate* chat, const std::string& model);

}  // namespace fidelio
