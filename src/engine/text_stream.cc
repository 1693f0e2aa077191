#include "engine/text_stream.h"

#include <algorithm>

#include "core/error.h"

namespace fidelio {

TextStream::TextStream(const Tokenizer* tokenizer, TextRules rules, std::span<const int32_t> prompt)
    : rules_(std::move(rules)) {
  for (const std::string& stop : rules_.stops) check(!stop.empty(), "a stop string is empty");
  check(rules_.stops.empty() || tokenizer != nullptr, "stop strings need a tokenizer to be found");
  if (tokenizer == nullptr) return;
  tokenizer_ = *tokenizer;
  std::vector<int32_t> before;  // the prompt as it would be shown
  std::copy_if(prompt.begin(), prompt.end(), std::back_inserter(before), [&](int32_t id) { return !hides(id); });
  detokenizer_.emplace(*tokenizer, false, before);
  if (rules_.thinking.channels) {
    messages_.emplace(rules_.thinking.channels->begun);
    for (std::string& stop : rules_.stops) stop = with_mark_texts(stop);
    stage_ = Stage::undecided;
  }
  for (size_t i = 0; i < rules_.stops.size(); ++i) {
    const auto ids = tokenizer->encode(rules_.stops[i], false);
    if (std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return hides(id); })) special_stops_.push_back(i);
  }
  if (messages_) return;
  if (rules_.thinking.opened)
    stage_ = Stage::thought;
  else if (!rules_.thinking.marks.empty())
    stage_ = Stage::undecided;
}

bool TextStream::hides(int32_t id) const {
  return !rules_.special && tokenizer_->is_special(id) && mark_of(id) == nullptr &&
         std::find(rules_.shown.begin(), rules_.shown.end(), id) == rules_.shown.end();
}

const std::pair<int32_t, std::string>* TextStream::mark_of(int32_t id) const {
  if (!rules_.thinking.channels) return nullptr;
  for (const auto& mark : rules_.thinking.channels->marks)
    if (mark.first == id) return &mark;
  return nullptr;
}

// Puts a mark's character in place of its token's text at the end of `piece`.
std::string TextStream::with_mark(std::string piece, const std::pair<int32_t, std::string>& mark) const {
  const std::string token = tokenizer_->token_text(mark.first);
  if (piece.ends_with(token)) piece.resize(piece.size() - token.size());
  return piece + mark.second;
}

bool TextStream::push(int32_t id) {
  if (!detokenizer_) return false;
  if (hides(id)) return hide(id);
  std::string piece = detokenizer_->push(id);
  if (const auto* mark = mark_of(id)) piece = with_mark(std::move(piece), *mark);
  return append(piece, false);
}

bool TextStream::finish() {
  const bool cut = detokenizer_ && !over_ && append(detokenizer_->finish(), true);
  over_ = true;
  return cut;
}

bool TextStream::append(const std::string& piece, bool last) {
  text_ += piece;
  if (!special_stops_.empty()) full_ += piece;
  size_t cut = std::string::npos;
  if (messages_) {
    messages_->push(piece);
    look_in_messages(cut, last);
  } else {
    find_answer(last);
    look(cut);
  }
  look_for_special(cut);
  return end_at(cut);
}

bool TextStream::hide(int32_t id) {
  if (special_stops_.empty()) return false;
  const size_t begin = full_.size();
  full_ += tokenizer_->token_text(id);
  hidden_.push_back({begin, full_.size()});
  size_t cut = std::string::npos;
  look_for_special(cut);
  return end_at(cut);
}

bool TextStream::end_at(size_t cut) {
  if (cut == std::string::npos) return false;
  text_.resize(cut);
  return over_ = true;
}

// Advances through the stages as far as the text allows.
void TextStream::find_answer(bool last) {
  if (stage_ == Stage::undecided) {
    const Opening opening = opening_of(text_, rules_.thinking.marks, last);
    if (opening.undecided) return;
    stage_ = opening.marks ? Stage::thought : Stage::answer;
    rules_.thinking.opened = opening.marks;
    looked_ = opening.end;
  }
  if (stage_ == Stage::thought) {
    const std::string_view mark = rules_.thinking.opened->end;
    const size_t found = text_.find(mark, looked_);
    if (found == std::string::npos) {
      looked_ = std::max(looked_, text_.size() - begun(text_, mark));
      return;
    }
    stage_ = Stage::blanks;
    looked_ = found + mark.size();
  }
  if (stage_ == Stage::blanks) {
    const size_t first = text_.find_first_not_of(" \t\r\n", looked_);
    answer_ = looked_ = std::min(first, text_.size());
    if (first != std::string::npos) stage_ = Stage::answer;
  }
}

// Finds the first stop string in the answer, as it is shown. A stop string may begin in earlier text, but no further
// back than its own length before the new text.
void TextStream::look(size_t& cut) {
  if (stage_ != Stage::answer) return;
  for (size_t i = 0; i < rules_.stops.size(); ++i) {
    const std::string& stop = rules_.stops[i];
    const size_t from = std::max(answer_, looked_ - std::min(looked_, stop.size() - 1));
    const size_t found = text_.find(stop, from);
    if (found < cut) cut = found, stop_string_ = static_cast<int64_t>(i);
  }
  looked_ = text_.size();
}

// Returns true while the newest message is shown.
bool TextStream::shows_message() const {
  return !messages_->in_header() && messages_->header().kind() == ChannelHeader::Kind::text;
}

// Does the same in the messages that are shown. A stop string may include the mark that ends its message.
void TextStream::look_in_messages(size_t& cut, bool last) {
  if (rules_.stops.empty()) return;
  while (const auto run = messages_->next(last)) {
    const bool shown = messages_->header().kind() == ChannelHeader::Kind::text;
    stage_ = shown ? Stage::answer : Stage::thought;
    if (run->first) answer_ = run->begin;
    if (!shown) continue;
    const std::string_view text =
        std::string_view(text_).substr(0, run->end + (run->marked ? kChannelEnd.text.size() : 0));
    for (size_t i = 0; i < rules_.stops.size(); ++i) {
      const std::string& stop = rules_.stops[i];
      const size_t found = text.find(stop, std::max(answer_, run->begin - std::min(run->begin, stop.size() - 1)));
      if (found < cut) cut = found, stop_string_ = static_cast<int64_t>(i);
    }
  }
}

// Does the same for stop strings among the hidden tokens, which occur as a whole or not at all.
void TextStream::look_for_special(size_t& cut) {
  if (stage_ == Stage::thought) return;
  for (const size_t i : special_stops_) {
    const std::string& stop = rules_.stops[i];
    const size_t from = full_looked_ - std::min(full_looked_, stop.size() - 1);
    for (size_t at = full_.find(stop, from); at != std::string::npos; at = full_.find(stop, at + 1)) {
      const size_t end = at + stop.size(), begin = without_hidden(at);
      const bool whole = std::none_of(hidden_.begin(), hidden_.end(), [&](const Hidden& h) {
        return (h.begin < at && at < h.end) || (h.begin < end && end < h.end);
      });
      if (!whole || begin < answer_ || begin >= cut) continue;
      cut = begin, stop_string_ = static_cast<int64_t>(i);
      break;
    }
  }
  full_looked_ = full_.size();
}

// Translates a position in the text with hidden tokens into one in the text without them.
size_t TextStream::without_hidden(size_t at) const {
  size_t hidden = 0;
  for (const Hidden& h : hidden_)
    if (h.begin < at) hidden += std::min(h.end, at) - h.begin;
  return at - hidden;
}

size_t TextStream::settled() const {
  if (over_ || rules_.stops.empty()) return text_.size();
  if (messages_ && !shows_message()) return std::min(messages_->given(), text_.size());
  if (stage_ == Stage::undecided && !messages_) return 0;
  if (stage_ == Stage::thought && !messages_) return text_.size();
  size_t held = 0;  // the longest end of the text that is a beginning of a stop string
  for (const std::string& stop : rules_.stops) held = std::max(held, begun(text_, stop));
  size_t settled = text_.size() - held;
  for (const size_t i : special_stops_)
    settled = std::min(settled, without_hidden(full_.size() - begun(full_, rules_.stops[i])));
  return std::min(text_.size(), std::max(settled, answer_));
}

}  // namespace fidelio
