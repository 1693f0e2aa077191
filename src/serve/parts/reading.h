// This file reads a text that may not be complete yet.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/foreign/json_text.h"
#include "serve/parts/call_forms.h"

namespace fidelio::serve {

constexpr std::string_view kSpace = " \t\r\n";

// Reads a text that may not be complete yet: a requested item is there, is not there, or may still come. Functions
// return false in the last two cases. missing() tells these apart, and is what the reader of a call then returns.
class Reading {
 public:
  Reading(std::string_view text, bool last) : text_(text), last_(last) {}

  size_t at() const { return at_; }
  void go_to(size_t at) { at_ = at, unsure_ = false; }
  bool ended() const { return at_ >= text_.size(); }
  char next() const { return ended() ? '\0' : text_[at_]; }
  void blanks() { go_to(std::min(text_.find_first_not_of(kSpace, at_), text_.size())); }
  bool is(std::string_view mark) {
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with(mark)) return true;
    unsure_ = unsure_ || mark.starts_with(rest);
    return false;
  }
  bool take(std::string_view mark) {
    const bool there = is(mark);
    if (there) go_to(at_ + mark.size());
    return there;
  }
  // Reads the text before the next `mark`, and skips the mark.
  bool until(std::string_view mark, std::string_view& what) {
    const size_t end = text_.find(mark, at_);
    unsure_ = end == std::string_view::npos;
    if (unsure_) return false;
    what = text_.substr(at_, end - at_);
    go_to(end + mark.size());
    return true;
  }
  // Reads a name: letters, digits and the characters in `between`.
  bool word(std::string& name, std::string_view between = "_-.") {
    const size_t begin = at_;
    while (!ended() && (std::isalnum(static_cast<unsigned char>(next())) != 0 || between.find(next()) < between.size()))
      ++at_;
    name = text_.substr(begin, at_ - begin);
    unsure_ = ended();
    return !name.empty() && !ended();
  }
  bool json(std::string_view& value) {
    const JsonEnd end = end_of_json(text_, at_);
    unsure_ = end.kind == JsonEnd::Kind::unfinished;
    if (end.kind != JsonEnd::Kind::whole) return false;
    value = text_.substr(at_, end.at - at_);
    go_to(end.at);
    return true;
  }
  bool find(std::string_view mark, size_t from, size_t& at) {
    at = text_.find(mark, from);
    unsure_ = at == std::string_view::npos;
    return !unsure_;
  }
  std::string_view rest() const { return text_.substr(std::min(at_, text_.size())); }
  std::string_view between(size_t begin, size_t end) const { return text_.substr(begin, end - begin); }

  bool unsure() const { return (unsure_ || ended()) && !last_; }  // If true, the requested item may still come.
  bool last() const { return last_; }
  CallRead missing() const { return {unsure() ? CallRead::Kind::more : CallRead::Kind::none}; }

 private:
  std::string_view text_;
  bool last_, unsure_ = false;
  size_t at_ = 0;
};

std::string trimmed(std::string_view text);  // It removes blanks at both ends.
Part call_named(std::string_view name, std::string arguments, std::string id = new_call_id());
// The calls end here, perhaps with `close`, which some models forget.
CallRead closed_calls(Reading& r, std::vector<Part> calls, std::string_view close);

// The readers below read the text after a mark (call_values.cc).
// It reads <function=..><parameter=..>.
CallRead function_calls(Reading& r, const Tools& tools, std::string_view close);
CallRead keyed_calls(Reading& r, const Tools& tools);  // It reads name<arg_key>..<arg_value>.. .
// Reads call:name{key:QUOTE..QUOTE,number:1}, as FunctionGemma and Gemma 4 write it, each with a quote of its own.
CallRead escaped_calls(Reading& r, const Tools& tools, std::string_view quote, std::string_view close);
// Reads name(key=value, ...), perhaps several in brackets. If `bare`, the names must be those of tools and the calls
// must end the text.
CallRead python_calls(Reading& r, const Tools& tools, std::string_view close, bool bare);

}  // namespace fidelio::serve
