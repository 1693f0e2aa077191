#include "serve/parts/answer_parts.h"

#include <algorithm>

#include "serve/parts/reading.h"

namespace fidelio::serve {
namespace {

constexpr size_t kNews = 256;  // After this many new bytes a call is parsed again, whatever they are.

void strip_front(std::string& text) { text.erase(0, std::min(text.find_first_not_of(kSpace), text.size())); }

// This is the first mark of a call in a text: its place (npos if there is none) and its form. `held` is the length of
// the text's end that may begin a mark.
struct MarkFound {
  size_t at = std::string::npos, form = 0, held = 0;
};
MarkFound first_mark(std::string_view text) {
  MarkFound found;
  const auto forms = call_forms();
  for (size_t i = 0; i < forms.size(); ++i) {
    const size_t at = text.find(forms[i].mark);
    if (at < found.at) found.at = at, found.form = i;
    found.held = std::max(found.held, begun(text, forms[i].mark));
  }
  return found;
}

std::string_view without_blanks_before(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

// Reads a text of a thought that begins with the mark of a call. These are calls if they name tools, and if nothing but
// the thought's end follows them until the answer ends. Otherwise the first `size` bytes belong to the thought.
CallRead calls_in_thought(std::string_view text, std::string_view end, bool last, const Tools& tools) {
  using Kind = CallRead::Kind;
  CallRead all{Kind::calls};
  std::string_view rest = text;
  for (MarkFound mark; (mark = first_mark(rest)).at == 0; rest = without_blanks_before(text.substr(all.size))) {
    const CallForm& form = call_forms()[mark.form];
    CallRead one = form.read(rest, last, tools);
    if (one.kind == Kind::more) return one;
    const bool known = std::all_of(one.calls.begin(), one.calls.end(),
                                   [&](const Part& call) { return tool_of(tools, call.name) != nullptr; });
    if (one.kind == Kind::none || !known) return {Kind::none, {}, text.size() - rest.size() + form.mark.size()};
    std::move(one.calls.begin(), one.calls.end(), std::back_inserter(all.calls));
    all.size = text.size() - rest.size() + one.size;
  }
  const bool ended = rest.starts_with(end);
  if (ended) rest = without_blanks_before(rest.substr(end.size()));
  if (rest.empty()) return last ? all : CallRead{Kind::more};
  const bool undecided = !ended && (end.starts_with(rest) || first_mark(rest).held == rest.size());
  return undecided && !last ? CallRead{Kind::more} : CallRead{Kind::none, {}, all.size};
}

}  // namespace

void append(std::vector<Part>& parts, Part part) {
  if (part.kind != Part::Kind::call && part.text.empty()) return;
  if (part.kind != Part::Kind::call && !parts.empty() && parts.back().kind == part.kind)
    parts.back().text += part.joined();
  else
    parts.push_back(std::move(part));
}

AnswerParts::AnswerParts(PartsRules rules)
    : rules_(std::move(rules)), state_(rules_.thinking.opened ? State::thought : State::start) {
  if (rules_.thinking.channels) messages_.emplace(rules_.thinking.channels->begun);
  drop_break_ = rules_.thinking.opened && rules_.thinking.opened->own_line;
}

bool AnswerParts::thinks() const {
  if (messages_) return !messages_->in_header() && messages_->header().kind() == ChannelHeader::Kind::thought;
  return state_ == State::thought || state_ == State::call_in_thought;
}

std::vector<Part> AnswerParts::push(const std::string& text) {
  std::vector<Part> parts;
  if (messages_) {
    messages_->push(text);
    read_messages(parts, false);
    return parts;
  }
  held_ += text;
  while (advance(parts, false)) {
  }
  return parts;
}

std::vector<Part> AnswerParts::finish() {
  std::vector<Part> parts;
  if (messages_) {
    read_messages(parts, true);
    return parts;
  }
  while (advance(parts, true)) {
  }
  return parts;
}

// Returns true if more can be done with the held text.
bool AnswerParts::advance(std::vector<Part>& parts, bool last) {
  switch (state_) {
    case State::start:
    case State::after_thought:
      return begin(last);
    case State::thought:
      return think(parts, last);
    case State::call_in_thought:
      return read_call_in_thought(parts, last);
    case State::text:
      return say(parts, last);
    case State::call:
    case State::unmarked:
      return read_call(parts, last);
    default:
      held_.clear();
      return false;
  }
}

// Decides by the beginning of the answer which state follows.
bool AnswerParts::begin(bool last) {
  if (state_ == State::start) {
    const Opening opening = opening_of(held_, rules_.thinking.marks, last);
    if (opening.undecided) return false;
    if (opening.marks) {
      rules_.thinking.opened = opening.marks;
      drop_break_ = opening.marks->own_line;
      held_.erase(0, opening.end);
      state_ = State::thought;
      return true;
    }
  } else {
    strip_front(held_);
  }
  const std::string text = trimmed(held_);
  if (text.empty() && !last && (rules_.tools || state_ == State::after_thought)) return false;
  state_ = rules_.tools && !text.empty() && may_begin_unmarked_calls(text) ? State::unmarked : State::text;
  looked_ = 0;
  return true;
}

bool AnswerParts::think(std::vector<Part>& parts, bool last) {
  if (drop_break_ && !held_.empty()) {
    if (held_.starts_with('\n')) held_.erase(0, 1);
    drop_break_ = false;
  }
  const std::string_view mark = rules_.thinking.opened->end;
  const size_t end = held_.find(mark);
  const MarkFound call = rules_.tools ? first_mark(held_) : MarkFound{};
  const bool calls = call.at < end, found = !calls && end != std::string::npos;
  const size_t held = std::max(begun(held_, mark), call.held);
  const size_t count = calls ? call.at : found ? end : last ? held_.size() : held_.size() - held;
  serve::append(parts, {Part::Kind::thought, held_.substr(0, count)});
  held_.erase(0, found ? end + mark.size() : count);
  if (calls) {
    state_ = State::call_in_thought;
    looked_ = 0;
  }
  if (found) state_ = State::after_thought;
  return calls || found;
}

// The held text begins with the mark of a call.
bool AnswerParts::read_call_in_thought(std::vector<Part>& parts, bool last) {
  if (!has_news(last)) return false;
  CallRead read = calls_in_thought(held_, rules_.thinking.opened->end, last, *rules_.tools);
  if (read.kind == CallRead::Kind::more) return false;
  if (read.kind == CallRead::Kind::calls) {
    tell_calls(parts, std::move(read.calls), held_.size());
    return true;
  }
  serve::append(parts, {Part::Kind::thought, held_.substr(0, read.size)});
  held_.erase(0, read.size);
  state_ = State::thought;
  return true;
}

bool AnswerParts::say(std::vector<Part>& parts, bool last) {
  if (called_) strip_front(held_);  // This is between calls; once text is given out, blanks belong to it.
  const MarkFound mark = rules_.tools ? first_mark(held_) : MarkFound{};
  const bool found = mark.at != std::string::npos;
  size_t count = found ? mark.at : held_.size();
  if (!found && !last && rules_.tools) {
    count -= mark.held;
    // Blanks before a call are not given out.
    while (count > 0 && kSpace.find(held_[count - 1]) != std::string_view::npos) --count;
  }
  std::string text = held_.substr(0, count);
  if (found) {  // The blanks before it are kept with it, in case it is no call.
    text.erase(text.find_last_not_of(kSpace) + 1);
    count = text.size();
  }
  if (!text.empty()) called_ = false;
  serve::append(parts, {Part::Kind::text, std::move(text)});
  held_.erase(0, count);
  if (!found) return false;
  state_ = State::call;
  form_ = mark.form;
  looked_ = 0;
  return true;
}

// A call ends with a bracket or a mark, so most new bytes need no parsing.
bool AnswerParts::has_news(bool last) {
  const bool news = last || looked_ == 0 || held_.size() >= looked_ + kNews ||
                    held_.find_first_of(")]}>`\n", looked_) != std::string::npos;
  if (news) looked_ = held_.size();
  return news;
}

bool AnswerParts::read_call(std::vector<Part>& parts, bool last) {
  if (!has_news(last)) return false;
  const bool marked = state_ == State::call;
  const CallForm& form = call_forms()[form_];
  const size_t begin = marked ? held_.find(form.mark) : 0;
  const std::string_view text = std::string_view(held_).substr(begin);
  CallRead read = marked ? form.read(text, last, *rules_.tools) : unmarked_calls(text, last, *rules_.tools);
  if (read.kind == CallRead::Kind::more) return false;
  state_ = State::text;
  if (read.kind == CallRead::Kind::none) {
    if (!marked) return true;
    called_ = false;
    serve::append(parts, {Part::Kind::text, held_.substr(0, begin + form.mark.size())});
    held_.erase(0, begin + form.mark.size());
    return true;
  }
  tell_calls(parts, std::move(read.calls), begin + read.size);
  return true;
}

// The calls took the first `size` bytes of the held text.
void AnswerParts::tell_calls(std::vector<Part>& parts, std::vector<Part> calls, size_t size) {
  if (rules_.one_call) calls.resize(1);
  for (Part& call : calls) parts.push_back(std::move(call));
  held_.erase(0, size);
  called_ = true;
  state_ = rules_.one_call ? State::over : State::text;
}

namespace {

// Returns the arguments that a message calls a function with, or "" if it calls none. A tool that takes one text alone
// may be given it as it is, as gpt-oss does with code.
std::string message_arguments(const ChannelHeader& header, const std::string& content, const Tools& tools) {
  const std::string text = trimmed(content);
  if (text.empty()) return header.whole ? "{}" : "";
  if (text.starts_with('{') && is_json(text)) return compact_json(text);
  const Tool* tool = tool_of(tools, header.function());
  if (tool == nullptr || !tool->parameters.is_object()) return "";
  const auto properties = tool->parameters.find("properties");
  if (properties == tool->parameters.end() || !properties->is_object() || properties->size() != 1) return "";
  const auto& [key, schema] = *properties->items().begin();
  if (header.type == "json" || !schema.is_object() || schema.value("type", Json()) != "string") return "";
  return "{" + json_of_text(key) + ":" + json_of_text(content) + "}";
}

}  // namespace

void AnswerParts::read_messages(std::vector<Part>& parts, bool last) {
  using Kind = ChannelHeader::Kind;
  while (state_ != State::over) {
    const auto run = messages_->next(last);
    if (!run) return;
    if (run->first) begun_ = false;
    const ChannelHeader& header = messages_->header();
    const std::string_view text = messages_->text_of(*run);
    if (header.kind() == Kind::call && rules_.tools) {
      called_with_ += text;
      if (run->ends) tell_message_call(parts);
    } else if (header.kind() == Kind::call) {  // No tools are shown, so nothing can be called.
      tell_run(parts, header.channel == "analysis" ? Kind::thought : Kind::text, text);
    } else {
      tell_run(parts, header.kind(), text);
    }
  }
}

// Tells a part of a message.
void AnswerParts::tell_run(std::vector<Part>& parts, ChannelHeader::Kind kind, std::string_view text) {
  if (text.empty()) return;
  const bool thought = kind == ChannelHeader::Kind::thought;
  bool& told = thought ? thought_told_ : text_told_;
  Part part{thought ? Part::Kind::thought : Part::Kind::text, std::string(text)};
  part.apart = !begun_ && told;
  begun_ = told = true;
  serve::append(parts, std::move(part));
}

// A message stays text if it is no call after all.
void AnswerParts::tell_message_call(std::vector<Part>& parts) {
  const ChannelHeader& header = messages_->header();
  const std::string content = std::exchange(called_with_, {});
  std::string arguments = message_arguments(header, content, *rules_.tools);
  if (arguments.empty()) return tell_run(parts, ChannelHeader::Kind::text, content);
  parts.push_back(call_named(header.function(), std::move(arguments)));
  if (rules_.one_call) state_ = State::over;
}

}  // namespace fidelio::serve
