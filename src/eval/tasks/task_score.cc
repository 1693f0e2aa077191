#include "eval/tasks/task_score.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/limits.h"
#include "text/thinking.h"
#include "text/tokenizer/pattern.h"
#include "text/tokenizer/unicode.h"

namespace fidelio {
namespace {

std::string without_spaces_around(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return std::string(first == std::string_view::npos ? "" : text.substr(first, last - first + 1));
}

// "1,234.50" -> "1234.5"; what is no number comes back as it is.
std::string plain_number(std::string text) {
  std::erase(text, ',');
  std::erase(text, '$');
  if (!text.empty() && text.back() == '.') text.pop_back();
  if (text.find('.') != std::string::npos && text.find_first_not_of("-0123456789.") == std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

// Returns the number that begins here, such as -$1,234.50, or nothing. A loop reads it because a model may write
// digits without end.
std::string_view number_at(std::string_view text, size_t at) {
  const auto digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  size_t end = at;
  if (end < text.size() && text[end] == '-') ++end;
  if (end < text.size() && text[end] == '$') ++end;
  if (!digit(end)) return {};
  while (digit(end) || (end < text.size() && text[end] == ',')) ++end;
  if (end < text.size() && text[end] == '.' && digit(end + 1))
    for (++end; digit(end);) ++end;
  return text.substr(at, end - at);
}

std::vector<std::string_view> numbers_in(std::string_view text) {
  std::vector<std::string_view> all;
  for (size_t at = 0; at < text.size();) {
    const std::string_view number = number_at(text, at);
    if (!number.empty()) all.push_back(number);
    at += std::max<size_t>(number.size(), 1);
  }
  return all;
}

std::string last_match(const std::string& text, const std::string& pattern) {
  Meter meter(fmt::format("the regular expression '{}' on an answer of {} bytes", foreign(pattern), text.size()));
  // Generation may have stopped within a character.
  const std::string valid = tokenization::replace_ill_formed_utf8(text);
  return std::string(tokenization::TextPattern::python(pattern).last(valid, meter).value_or(""));
}

// Returns the contents of the last \boxed{...} with balanced braces.
std::string boxed(const std::string& text) {
  const size_t begin = text.rfind("\\boxed{");
  if (begin == std::string::npos) return "";
  int depth = 1;
  for (size_t i = begin + 7; i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return text.substr(begin + 7, i - begin - 7);
  }
  return "";
}

// Removes differences of spelling between equal formulas: spacing and sizing commands, display fractions, typeset
// units.
std::string plain_formula(std::string text) {
  for (const auto& [from, to] : {std::pair{"\\left", ""},
                                 {"\\right", ""},
                                 {"\\!", ""},
                                 {"\\,", ""},
                                 {"\\;", ""},
                                 {"\\ ", ""},
                                 {"\\dfrac", "\\frac"},
                                 {"\\tfrac", "\\frac"},
                                 {"\\$", ""},
                                 {"$", ""},
                                 {"^\\circ", ""},
                                 {"^{\\circ}", ""},
                                 {"\\%", ""},
                                 {"%", ""},
                                 {" ", ""}})
    for (size_t at; (at = text.find(from)) != std::string::npos;) text.replace(at, std::string_view(from).size(), to);
  return plain_number(text);
}

std::string normalised(const std::string& answer, Match match) {
  switch (match) {
    case Match::after_marker:
    case Match::last_number:
      return plain_number(without_spaces_around(answer));
    case Match::boxed:
      return plain_formula(without_spaces_around(answer));
    default:
      return without_spaces_around(answer);
  }
}

}  // namespace

// The answer stands behind the end of the last thought, whichever family's marks enclose it.
std::string answer_part(std::string_view text) {
  size_t begin = 0;
  bool closed = false, opened = false;
  for (const ThinkingMarks& marks : thinking_tags()) {
    opened = opened || text.find(marks.begin) != std::string_view::npos;
    const size_t close = text.rfind(marks.end);
    if (close == std::string_view::npos) continue;
    closed = true;
    begin = std::max(begin, close + marks.end.size());
  }
  return opened && !closed ? "" : without_spaces_around(text.substr(begin));
}

std::string extract_answer(std::string_view answer_text, Match match, const std::string& pattern) {
  const std::string text(answer_text);
  switch (match) {
    case Match::exact:
      return without_spaces_around(text);
    case Match::last_number: {
      const auto numbers = numbers_in(text);
      return normalised(numbers.empty() ? "" : std::string(numbers.back()), match);
    }
    case Match::boxed:
      return normalised(boxed(text), match);
    case Match::after_marker: {
      const size_t marker = text.rfind(pattern);
      if (marker == std::string::npos) return "";
      const auto numbers = numbers_in(std::string_view(text).substr(marker + pattern.size()));
      return numbers.empty() ? "" : normalised(std::string(numbers.front()), match);
    }
    default:
      return without_spaces_around(last_match(text, pattern));
  }
}

bool is_correct(std::string_view text, const TaskItem& item, Match match, const std::string& pattern) {
  const std::string answer = extract_answer(answer_part(text), match, pattern);
  return !answer.empty() && answer == normalised(item.answer, match);
}

}  // namespace fidelio
