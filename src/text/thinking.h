// This file finds the reasoning that a model writes before its answer. It stands between two marks, which each model
// family spells in its own way. gpt-oss alone writes messages instead (text/channels.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/channels.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {

struct ThinkingMarks {
  std::string_view begin, end;
  bool own_line = false;  // If true, a line break behind the opening mark belongs to it.
};

// Returns the marks of all known families. The first, <think>, is the one that most of them share.
std::span<const ThinkingMarks> thinking_marks();
// Returns the marks that nobody writes as ordinary words. The others mark a thought only where the model is known to
// use them.
std::span<const ThinkingMarks> thinking_tags();

// This says how an answer may begin: with a thought between one of these pairs of marks, or inside one that the prompt
// has already opened. If there are channels, the answer consists of messages, and nothing else of this holds.
struct Thinking {
  std::vector<ThinkingMarks> marks{};
  std::optional<ThinkingMarks> opened{};
  std::optional<Channels> channels{};
  bool possible() const { return opened || !marks.empty() || channels; }
};

// Returns the marks whose thought the end of the prompt opens, blanks aside.
std::optional<ThinkingMarks> opened_by(std::string_view prompt, std::span<const ThinkingMarks> marks);
// Returns true where the end of the prompt closes a thought, so an answer follows that does not think again.
bool closed_by(std::string_view prompt, std::span<const ThinkingMarks> marks);

// An Opening describes how the beginning of an answer opens a thought.
struct Opening {
  bool undecided = false;                // It is true if more of the text must arrive before this is known.
  std::optional<ThinkingMarks> marks{};  // These are the marks around the thought, if there is one.
  size_t end = 0;                        // The thought begins here, after its opening mark.
};
// A few blanks may stand before a mark. `last` says that no more text will come.
Opening opening_of(std::string_view text, std::span<const ThinkingMarks> marks, bool last);

// Returns the ids and spellings of the marks, or of the beginnings of marks, that are special tokens of this
// vocabulary. A text without special tokens must still contain them.
std::vector<std::pair<int32_t, std::string>> special_marks(const Tokenizer& tokenizer);

// Returns the length of the longest end of `text` that is a beginning of `mark`, though not all of it.
size_t begun(std::string_view text, std::string_view mark);

}  // namespace fidelio
