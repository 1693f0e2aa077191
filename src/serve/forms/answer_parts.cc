#include "serve/forms/answer_parts.h"

#include <algorithm>
#include <random>

#include "core/foreign/json.h"
#include "serve/http/fields.h"

namespace fidelio::serve {
namespace {

constexpr std::string_view kThink = "<think>", kThought = "</think>", kCall = "<tool_call>", kCalled = "</tool_call>",
                           kMistral = "[TOOL_CALLS]", kArguments = "[ARGS]", kPython = "<|python_tag|>",
                           kSpace = " \t\r\n";

// Nine letters and digits: the only form that Mistral's templates take back.
std::string new_call_id() {
  thread_local std::random_device device;
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::string id;
  for (int i = 0; i < 9; ++i) id += letters[device() % letters.size()];
  return id;
}

// The longest end of `text` that `mark` begins with, but is not all of it.
size_t overlap(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
  return 0;
}

void strip_front(std::string& text) { text.erase(0, std::min(text.find_first_not_of(kSpace), text.size())); }

std::string stripped(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kSpace) + 1 - first));
}

// {"name", "arguments" or "parameters"}: anything else throws Error.
Part call_of(const Json& value) {
  check(value.is_object() && value.contains("name") && value["name"].is_string(), "no call of a tool");
  const char* key = value.contains("arguments") ? "arguments" : "parameters";
  Json arguments = value.contains(key) ? value[key] : Json::object();
  std::string text = arguments.is_string() ? arguments.get<std::string>() : arguments.dump();
  return {Part::Kind::call, std::move(text), value["name"].get<std::string>(), new_call_id()};
}

// Where the JSON object or array that begins at `at` ends; npos if it does not.
size_t end_of_json(std::string_view text, size_t at) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = at; i < text.size(); ++i) {
    if (quoted) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        quoted = false;
      continue;
    }
    if (text[i] == '"') quoted = true;
    if (text[i] == '{' || text[i] == '[') ++depth;
    if ((text[i] == '}' || text[i] == ']') && --depth == 0) return i + 1;
  }
  return std::string_view::npos;
}

// name[ARGS]{...} or name{...}, again after each [TOOL_CALLS].
std::vector<Part> named_calls(std::string_view text) {
  std::vector<Part> parts;
  while (!text.empty()) {
    if (text.starts_with(kMistral)) text.remove_prefix(kMistral.size());
    const size_t open = text.find('{');
    check(open != std::string_view::npos, "no arguments");
    std::string_view name = text.substr(0, open);
    if (const size_t mark = name.find(kArguments); mark != std::string_view::npos) name = name.substr(0, mark);
    const size_t end = end_of_json(text, open);
    check(end != std::string_view::npos && !stripped(name).empty(), "no call of a tool");
    const Json arguments = parse_ordered_json(text.substr(open, end - open), "a call");
    parts.push_back({Part::Kind::call, arguments.dump(), stripped(name), new_call_id()});
    text.remove_prefix(end);
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  }
  return parts;
}

}  // namespace

void append(std::vector<Part>& parts, Part part) {
  if (part.kind != Part::Kind::call && part.text.empty()) return;
  if (part.kind != Part::Kind::call && !parts.empty() && parts.back().kind == part.kind)
    parts.back().text += part.text;
  else
    parts.push_back(std::move(part));
}

std::vector<Part> calls_of(const std::string& text) {
  std::vector<Part> parts;
  std::string rest = stripped(text);
  try {
    if (rest.starts_with(kMistral)) {
      rest.erase(0, kMistral.size());
      strip_front(rest);
      if (!rest.starts_with('[')) return named_calls(rest);
    } else if (rest.starts_with(kPython)) {
      rest.erase(0, kPython.size());
    }
    while (!rest.empty()) {
      const size_t end = end_of_json(rest, 0);
      check(end != std::string::npos && (rest[0] == '{' || rest[0] == '['), "no JSON");
      const Json value = parse_ordered_json(std::string_view(rest).substr(0, end), "a call");
      if (value.is_array())
        for (const Json& one : value) parts.push_back(call_of(one));
      else
        parts.push_back(call_of(value));
      rest.erase(0, end);
      strip_front(rest);
      if (rest.starts_with(';')) rest.erase(0, 1);
      strip_front(rest);
    }
  } catch (const Error&) {
    return {};
  }
  return parts;
}

std::vector<Part> AnswerParts::push(const std::string& text) {
  held_ += text;
  std::vector<Part> parts;
  while (advance(parts, false)) {
  }
  return parts;
}

std::vector<Part> AnswerParts::finish() {
  std::vector<Part> parts;
  while (advance(parts, true)) {
  }
  return parts;
}

// True if there may be more to do with what is held.
bool AnswerParts::advance(std::vector<Part>& parts, bool last) {
  switch (state_) {
    case State::start:
    case State::after_thought:
      return begin(last);
    case State::thought:
      return think(parts, last);
    case State::text:
      return say(parts, last);
    case State::call:
      return close_call(parts, last);
    case State::over:
      held_.clear();
      return false;
    default:
      if (!last || held_.empty()) return false;
      auto calls = calls_of(held_);
      if (one_call_ && calls.size() > 1) calls.resize(1);
      if (calls.empty()) serve::append(parts, {Part::Kind::text, held_});
      for (Part& call : calls) parts.push_back(std::move(call));
      held_.clear();
      return false;
  }
}

// What stands first says what the answer is.
bool AnswerParts::begin(bool last) {
  const std::string text = stripped(held_);
  const auto may_be = [&](std::string_view mark) {
    return !last && text.size() < mark.size() && mark.starts_with(text);
  };
  if (state_ == State::start && text.starts_with(kThink)) {
    held_.erase(0, held_.find(kThink) + kThink.size());
    state_ = State::thought;
    return true;
  }
  const bool may_think = state_ == State::start && may_be(kThink);
  if (tools_ && (text.starts_with('{') || text.starts_with(kPython))) {
    state_ = State::whole;
    return true;
  }
  if (may_think || (tools_ && may_be(kPython)) || (text.empty() && !last && (tools_ || state_ == State::after_thought)))
    return false;
  if (state_ == State::after_thought) strip_front(held_);
  state_ = State::text;
  return true;
}

bool AnswerParts::think(std::vector<Part>& parts, bool last) {
  const size_t end = held_.find(kThought);
  const bool found = end != std::string::npos;
  const size_t count = found ? end : last ? held_.size() : held_.size() - overlap(held_, kThought);
  serve::append(parts, {Part::Kind::thought, held_.substr(0, count)});
  held_.erase(0, found ? end + kThought.size() : count);
  if (found) state_ = State::after_thought;
  return found;
}

bool AnswerParts::say(std::vector<Part>& parts, bool last) {
  if (called_) strip_front(held_);  // between calls; once something is said, blanks are of that
  const size_t hermes = tools_ ? held_.find(kCall) : std::string::npos,
               mistral = tools_ ? held_.find(kMistral) : std::string::npos, mark = std::min(hermes, mistral);
  const bool found = mark != std::string::npos;
  size_t count = found ? mark : held_.size();
  if (!found && !last && tools_) {
    count -= std::max(overlap(held_, kCall), overlap(held_, kMistral));
    // Blanks before a call are not said.
    while (count > 0 && kSpace.find(held_[count - 1]) != std::string_view::npos) --count;
  }
  std::string text = held_.substr(0, count);
  if (found) {  // the blanks before it stay with it, should it be no call
    text.erase(text.find_last_not_of(kSpace) + 1);
    count = text.size();
  }
  if (!text.empty()) called_ = false;
  serve::append(parts, {Part::Kind::text, std::move(text)});
  held_.erase(0, count);
  if (!found) return false;
  state_ = hermes < mistral ? State::call : State::mistral;
  return true;
}

bool AnswerParts::close_call(std::vector<Part>& parts, bool last) {
  const size_t end = held_.find(kCalled);
  if (end == std::string::npos && !last) return false;
  const std::string whole = held_.substr(0, end == std::string::npos ? end : end + kCalled.size());
  const size_t begin = held_.find(kCall) + kCall.size(), size = (end == std::string::npos ? held_.size() : end) - begin;
  try {
    parts.push_back(call_of(parse_ordered_json(stripped(held_.substr(begin, size)), "a call")));
    called_ = true;
  } catch (const Error&) {
    serve::append(parts, {Part::Kind::text, whole});
  }
  held_.erase(0, whole.size());
  state_ = called_ && one_call_ ? State::over : State::text;
  return !held_.empty();
}

}  // namespace fidelio::serve
