// Words that stand for a text where --text and --calibration take one. They are words wherever they stand alone: a file or
// folder of such a name is written ./own or ./tools.
//
//   tools    conversations with calls of tools, which come with fidelio; two sets without a template in common
//   own:N    N answers of the model itself, sampled as its authors recommend; own: kOwnDocuments of them
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

bool is_text_word(const std::string& argument);
// Returns how many answers "own" and "own:N" ask for; nothing for all else. Throws Error for a number that is none, or out of range.
std::optional<int64_t> own_documents(const std::string& argument);
// Every word as the path of what it stands for, all else as it is. `own_text`: where the model's own answers are.
std::vector<std::string> without_words(std::vector<std::string> sources, TextUse use, const std::string& own_text);
// Throws Error for tools where a model has no template, or one that takes no tools. `model`: its name.
void check_takes_words(const std::vector<std::string>& sources, const ChatTemplate* chat, const std::string& model);

}  // namespace fidelio
