#include "runtime/texts/words.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "runtime/texts/bundled.h"

namespace fidelio {
namespace {

constexpr std::string_view kTools = "tools", kOwn = "own";

}  // namespace

std::optional<int64_t> own_documents(const std::string& argument) {
  if (argument == kOwn) return kOwnDocuments;
  const std::string begin = std::string(kOwn) + ":";
  if (!argument.starts_with(begin)) return std::nullopt;
  int64_t documents = 0;
  const char *from = argument.data() + begin.size(), *to = argument.data() + argument.size();
  const auto [end, error] = std::from_chars(from, to, documents);
  check(error == std::errc() && end == to && documents >= kLeastOwnDocuments && documents <= kMostOwnDocuments,
        "{}: expected own:N, N answers of the model itself, from {} to {}; a file of that name is written ./own",
        argument, kLeastOwnDocuments, kMostOwnDocuments);
  return documents;
}

bool is_text_word(const std::string& argument) { return argument == kTools || own_documents(argument).has_value(); }

std::vector<std::string> without_words(std::vector<std::string> sources, TextUse use, const std::string& own_text) {
  for (std::string& source : sources) {
    if (source == kTools)
      source = bundled_text(use == TextUse::calibration ? "tools-calibration.jsonl" : "tools-heldout.jsonl");
    else if (own_documents(source))
      source = own_text;
  }
  return sources;
}

void check_takes_words(const std::vector<std::string>& sources, const ChatTemplate* chat, const std::string& model) {
  if (std::find(sources.begin(), sources.end(), kTools) == sources.end()) return;
  check(chat != nullptr, "tools: {} has no chat template, so that there are no calls of tools to measure it on", model);
  check(chat->shows_tools(),
        "tools: the chat template of {} takes no tools, so that there are no calls of tools to measure it on", model);
}

}  // namespace fidelio
