// text: what a model thinks before it answers stands between two marks, which each family spells in its own way.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace fidelio {

struct ThinkingMarks {
  std::string_view begin, end;
};

// The marks of all families that are known. The first, <think>, is the one that most of them share.
std::span<const ThinkingMarks> thinking_marks();
// Those that nobody writes as words: the others mean a thought only where the model is known to use them.
std::span<const ThinkingMarks> thinking_tags();

// How an answer may begin: with a thought between one of these marks, or within one that the prompt has opened already.
struct Thinking {
  std::vector<ThinkingMarks> marks{};
  std::optional<ThinkingMarks> opened{};
  bool possible() const { return opened || !marks.empty(); }
};

// The marks of which the prompt's end, blanks aside, opens a thought.
std::optional<ThinkingMarks> opened_by(std::string_view prompt, std::span<const ThinkingMarks> marks);
// True where the prompt's end closes a thought: what follows is the answer, and does not think again.
bool closed_by(std::string_view prompt, std::span<const ThinkingMarks> marks);

// An Opening is what the beginning of an answer says about its thought.
struct Opening {
  bool undecided = false;                // more of the text must come before it can be said
  std::optional<ThinkingMarks> marks{};  // those between which it thinks
  size_t end = 0;                        // where the thought begins, behind its mark
};
// Blanks may stand before a mark, a few of them. `last`: no more will come.
Opening opening_of(std::string_view text, std::span<const ThinkingMarks> marks, bool last);

// The ids of the marks that are special tokens of this vocabulary, with their spelling: a text that leaves special tokens out
// must have them all the same.
std::vector<std::pair<int32_t, std::string>> special_marks(const Tokenizer& tokenizer);

// The length of the longest end of `text` with which `mark` begins, but which is not all of it.
size_t begun(std::string_view text, std::string_view mark);

}  // namespace fidelio
