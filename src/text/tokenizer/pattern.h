// This file defines the text pattern of a tokenizer file, which is literal or an Oniguruma regular expression, and the
// cuts made with it. Other regular expressions over text that a stranger wrote use it for its bounds.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/foreign/limits.h"

namespace fidelio::tokenization {

// These are the bytes [begin, end) of a text. `match` says that the pattern matched here; for pieces to be cut it says
// that this part is dropped.
struct TextSpan {
  size_t begin, end;
  bool match;
};

// A pattern is immutable and safe to use from several threads; copies share the compiled expression.
class TextPattern {
 public:
  static TextPattern literal(std::string text);             // It throws Error if the text is empty.
  static TextPattern regex(const std::string& expression);  // It throws Error with Oniguruma's reason.
  // Compiles an expression as Python reads it: ^ and $ are the ends of the text, not of its lines.
  static TextPattern python(const std::string& expression);

  // Writes spans that cover `text` (valid UTF-8) without gap or overlap; matches do not overlap and are found from the
  // left. A regular expression may match nothing (an empty span) anywhere except right after another match. An
  // expression can be made to read much of the text at every place of it, so the part of a match beyond a few dozen
  // steps is charged to `meter`. Throws Error when that is empty or one match needs more than any published expression
  // does.
  void find(std::string_view text, std::vector<TextSpan>& spans, Meter& meter) const;
  // Returns the first group of the last match, or the whole match where there are no groups, or nothing without a
  // match. The text and the bounds are those of find().
  std::optional<std::string_view> last(std::string_view text, Meter& meter) const;

 private:
  struct Compiled;
  class Search;
  TextPattern() = default;
  void find_regex(std::string_view text, std::vector<TextSpan>& spans, Meter& meter) const;
  std::string literal_;
  std::shared_ptr<const Compiled> regex_;  // It is null for a literal pattern.
};

// This says what happens to the matches (delimiters) when a text is split. For "a-b" cut at "-", Isolated gives a|-|b,
// Removed a|b, MergedWithPrevious a-|b, MergedWithNext a|-b; Contiguous is Isolated with runs of matches kept together.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Rewrites the spans of find() into pieces; those with `match` still set are to be dropped.
void apply_split_behavior(SplitBehavior behavior, std::vector<TextSpan>& spans);

}  // namespace fidelio::tokenization
