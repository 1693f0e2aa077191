// A text pattern of a tokenizer file, literal or Oniguruma regular expression, and the cuts made with it. Other regular
// expressions over text that somebody else wrote have the same bounds.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/foreign/limits.h"

namespace fidelio::tokenization {

// Bytes [begin, end) of a text. `match`: the pattern matched here (for pieces to be cut: drop this part).
struct TextSpan {
  size_t begin, end;
  bool match;
};

// Immutable and safe to use from several threads; copies share the compiled expression.
class TextPattern {
 public:
  static TextPattern literal(std::string text);             // throws Error if empty
  static TextPattern regex(const std::string& expression);  // throws Error with Oniguruma's reason
  // The same as Python reads it: ^ and $ are the ends of the text, not of its lines.
  static TextPattern python(const std::string& expression);

  // Writes spans that cover `text` (valid UTF-8) without gap or overlap, matches being non-overlapping from the left. A
  // regular expression may match nothing (an empty span) anywhere but right after another match. An expression can be
  // made to look at much of the text at every place of it, so whatever one match takes beyond a few dozen steps is paid
  // to `meter`; throws Error when that is empty or one match needs more than any published expression does.
  void find(std::string_view text, std::vector<TextSpan>& spans, Meter& meter) const;
  // The first group of a regular expression's last match, or all of that where there are no groups; nothing without a
  // match. Text and bounds as above.
  std::optional<std::string_view> last(std::string_view text, Meter& meter) const;

 private:
  struct Compiled;
  class Search;
  TextPattern() = default;
  void find_regex(std::string_view text, std::vector<TextSpan>& spans, Meter& meter) const;
  std::string literal_;
  std::shared_ptr<const Compiled> regex_;  // null: literal
};

// What becomes of the matches (delimiters) when a text is split: for "a-b" cut at "-", Isolated gives a|-|b,
// Removed a|b, MergedWithPrevious a-|b, MergedWithNext a|-b; Contiguous is Isolated with runs of matches kept together.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Rewrites the spans of find() into pieces; those with `match` still set are to be dropped.
void apply_split_behavior(SplitBehavior behavior, std::vector<TextSpan>& spans);

}  // namespace fidelio::tokenization
