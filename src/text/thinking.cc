#include "text/thinking.h"

#include <algorithm>
#include <array>

namespace fidelio {
namespace {

constexpr std::array kThinkingMarks = {
    // These are the marks of DeepSeek-R1, Qwen3, SmolLM3, Granite 3.3, Phi-4 reasoning, OLMo 3 and GLM.
    ThinkingMarks{"<think>", "</think>"},
    ThinkingMarks{"[THINK]", "[/THINK]"},      // These are the marks of Magistral and Ministral 3 Reasoning.
    ThinkingMarks{"<thought>", "</thought>"},  // These are the marks of EXAONE Deep.
    // These are the marks of Reflection, and of models that were taught by Claude's answers.
    ThinkingMarks{"<thinking>", "</thinking>"},
    ThinkingMarks{"<seed:think>", "</seed:think>"},           // These are the marks of Seed-OSS.
    ThinkingMarks{"<|START_THINKING|>", "<|END_THINKING|>"},  // These are the marks of Command A Reasoning.
    ThinkingMarks{"<unused94>thought", "<unused95>"},         // These are the marks of MedGemma.
    ThinkingMarks{"<|channel>thought", "<channel|>", true},   // These are the marks of Gemma 4.
    ThinkingMarks{"Here is my thought process:", "Here is my response:"},  // These are the marks of Granite 3.2.
    ThinkingMarks{"Here's my thought process:", "Here's my response:"},    // These are the marks of Granite 3.2, too.
};

constexpr size_t kTags = 8;  // The first eight of them are tags.
constexpr std::string_view kBlanks = " \t\r\n";
constexpr size_t kMostBlanks = 16;  // Up to this many blanks may stand before a mark.

std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

}  // namespace

std::span<const ThinkingMarks> thinking_marks() { return kThinkingMarks; }

std::span<const ThinkingMarks> thinking_tags() { return std::span(kThinkingMarks).first(kTags); }

std::optional<ThinkingMarks> opened_by(std::string_view prompt, std::span<const ThinkingMarks> marks) {
  const std::string_view text = without_blanks_behind(prompt);
  for (const ThinkingMarks& m : marks)
    if (text.ends_with(m.begin)) return m;
  return {};
}

bool closed_by(std::string_view prompt, std::span<const ThinkingMarks> marks) {
  const std::string_view text = without_blanks_behind(prompt);
  return std::any_of(marks.begin(), marks.end(), [&](const ThinkingMarks& m) { return text.ends_with(m.end); });
}

Opening opening_of(std::string_view text, std::span<const ThinkingMarks> marks, bool last) {
  const size_t first = std::min(text.find_first_not_of(kBlanks), text.size());
  if (marks.empty() || first > kMostBlanks) return {};
  const std::string_view said = text.substr(first);
  bool undecided = false;
  for (const ThinkingMarks& m : marks) {
    if (said.starts_with(m.begin)) return {false, m, first + m.begin.size()};
    undecided = undecided || m.begin.starts_with(said);
  }
  return {undecided && !last};
}

std::vector<std::pair<int32_t, std::string>> special_marks(const Tokenizer& tokenizer) {
  std::vector<std::pair<int32_t, std::string>> found;
  for (const ThinkingMarks& marks : kThinkingMarks)
    for (const std::string_view mark : {marks.begin, marks.end})
      for (const std::string_view part : {mark, mark.substr(0, mark.find('>') + 1)})
        if (const auto id = tokenizer.id_of(part); id && tokenizer.is_special(*id)) {
          found.emplace_back(*id, part);
          break;
        }
  return found;
}

size_t begun(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
  return 0;
}

}  // namespace fidelio
