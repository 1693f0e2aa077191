#include "text/channels.h"

#include <algorithm>
#include <array>

#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {
namespace {

constexpr std::array kChannelMarks = {kChannelStart, kChannelName, kChannelMessage, kChannelConstrain,
                                      kChannelEnd,   kChannelCall, kChannelReturn};
constexpr size_t kMarkBytes = 4;
constexpr std::string_view kMarkBegin = kChannelStart.text.substr(0, 3);  // All marks begin with these bytes.
constexpr size_t kLongestWord = 256;                                      // A longer word belongs to no header.
constexpr size_t kMostHeaderBlanks = 64, kLongestHeader = 1024;           // So does what is beyond these.
constexpr std::string_view kHeaderBlanks = " \t\r\n";
constexpr std::string_view kTo = "to=", kFunctions = "functions.";

std::string replaced(std::string text, std::string_view ChannelMark::*from, std::string_view ChannelMark::*to) {
  for (const ChannelMark& mark : kChannelMarks)
    for (size_t at = 0; (at = text.find(mark.*from, at)) != std::string::npos; at += (mark.*to).size())
      text.replace(at, (mark.*from).size(), mark.*to);
  return text;
}

}  // namespace

std::string with_mark_texts(std::string text) {
  return replaced(std::move(text), &ChannelMark::token, &ChannelMark::text);
}
std::string with_mark_tokens(std::string text) {
  return replaced(std::move(text), &ChannelMark::text, &ChannelMark::token);
}

bool writes_channels(std::string_view template_source) {
  const auto writes = [&](const ChannelMark& mark) { return template_source.find(mark.token) != std::string::npos; };
  return writes(kChannelStart) && writes(kChannelName) && writes(kChannelMessage);
}

std::optional<Channels> channels_of(const ChatTemplate& chat, const Tokenizer& tokenizer, std::string_view prompt) {
  if (!writes_channels(chat.source())) return {};
  Channels channels;
  for (const ChannelMark& mark : kChannelMarks)
    if (const auto id = tokenizer.id_of(mark.token); id && tokenizer.is_special(*id))
      channels.marks.emplace_back(*id, mark.text);
  for (const ChannelMark& mark : {kChannelStart, kChannelName, kChannelMessage}) {
    const auto has = [&](const auto& own) { return own.second == mark.text; };
    if (std::none_of(channels.marks.begin(), channels.marks.end(), has)) return {};
  }
  const size_t start = prompt.rfind(kChannelStart.token);
  if (start == std::string_view::npos)
    channels.begun = "assistant";
  else
    channels.begun = with_mark_texts(std::string(prompt.substr(start + kChannelStart.token.size())));
  if (channels.begun.empty()) channels.begun = kChannelStart.text;  // The model writes its role itself.
  return channels;
}

ChannelHeader::Kind ChannelHeader::kind() const {
  const bool from_model = role.empty() || role == "assistant";
  const bool to_people = recipient.empty() || recipient == "assistant" || recipient == "user" || recipient == "all";
  if (from_model && !to_people) return Kind::call;
  return channel == "analysis" ? Kind::thought : Kind::text;
}

std::string_view ChannelHeader::function() const {
  const std::string_view name = recipient;
  return name.starts_with(kFunctions) ? name.substr(kFunctions.size()) : name;
}

// Returns the last byte of the mark that stands at a place, or 0 if none does.
char32_t ChannelReader::mark_at(size_t at) const {
  if (text_.size() < at + kMarkBytes || text_.compare(at, kMarkBegin.size(), kMarkBegin) != 0) return 0;
  const auto last = static_cast<unsigned char>(text_[at + kMarkBytes - 1]);
  const auto first_mark = static_cast<unsigned char>(kChannelStart.text.back());
  return last >= first_mark && last < first_mark + kChannelMarks.size() ? last : 0;
}

// Tells whether the text ends in the middle of what may be a mark.
bool ChannelReader::may_become_mark(size_t at) const {
  return at < text_.size() && kMarkBegin.starts_with(std::string_view(text_).substr(at));
}

// Returns the place of the next mark, or of what may become one at the end of the text.
size_t ChannelReader::next_mark(size_t from) const {
  for (size_t at = from; (at = text_.find(kMarkBegin[0], at)) != std::string::npos; ++at)
    if (mark_at(at) != 0 || may_become_mark(at)) return at;
  return text_.size();
}

size_t ChannelReader::behind_blanks(size_t at) const {
  return std::min(text_.find_first_not_of(kHeaderBlanks, at), text_.size());
}

// Reads a word, which ends at a blank or a mark. A word of the prompt ends with the prompt.
std::string ChannelReader::word(size_t& at) const {
  const size_t limit = at < prompt_ ? prompt_ : text_.size(), begin = at;
  at = std::min({text_.find_first_of(kHeaderBlanks, at), next_mark(at), limit});
  return text_.substr(begin, at - begin);
}

namespace {

constexpr char32_t byte_of(const ChannelMark& mark) { return static_cast<unsigned char>(mark.text.back()); }

}  // namespace

// Reads a word without a mark before it, as in "commentary to=functions.f json". It is the type of the content only if
// the content's mark follows it; otherwise it begins the content.
ChannelReader::Read ChannelReader::read_type(size_t& at, size_t word_at, ChannelHeader& header, bool last) const {
  size_t end = word_at;
  const std::string type = word(end);
  const size_t behind = behind_blanks(end);
  if (behind == text_.size() || may_become_mark(behind)) {
    if (!last && type.size() <= kLongestWord) return Read::more;
    return Read::none;
  }
  if (mark_at(behind) != byte_of(kChannelMessage) || type.size() > kLongestWord) return Read::none;
  header.type = type;
  at = behind;
  return Read::whole;
}

// Reads one part of a header, other than the mark that ends it.
ChannelReader::Read ChannelReader::read_item(size_t& at, ChannelHeader& header, bool last) const {
  const size_t begin = behind_blanks(at);
  if (begin - at > kMostHeaderBlanks) return Read::none;
  if (begin == text_.size() || may_become_mark(begin)) return last ? Read::none : Read::more;
  const char32_t mark = mark_at(begin);
  const std::string_view rest = std::string_view(text_).substr(begin);
  const bool to = mark == 0 && rest.starts_with(kTo);
  if (mark == 0 && !to) {
    if (kTo.starts_with(rest) && !last) return Read::more;
    const bool named = !header.channel.empty() || !header.recipient.empty();
    return named ? read_type(at, begin, header, last) : Read::none;
  }
  const bool known =
      mark == byte_of(kChannelStart) || mark == byte_of(kChannelName) || mark == byte_of(kChannelConstrain);
  if (!to && !known) return Read::none;
  size_t end = to ? begin + kTo.size() : behind_blanks(begin + kMarkBytes);
  const std::string what = word(end);
  if ((end == text_.size() || may_become_mark(end)) && end >= prompt_ && !last && what.size() <= kLongestWord)
    return Read::more;
  if (what.size() > kLongestWord) return Read::none;
  if (mark == byte_of(kChannelStart)) {
    header = {};
    header.role = what;
  } else if (to) {
    header.recipient = what;
  } else {
    // Some headers have the type behind a second <|channel|>.
    (mark == byte_of(kChannelName) && header.channel.empty() ? header.channel : header.type) = what;
  }
  at = end;
  return Read::whole;
}

// Returns false if more must arrive, or if the answer ends in the header.
bool ChannelReader::read_header(bool last) {
  ChannelHeader header;
  size_t at = at_;
  if (at < prompt_ && mark_at(at) == 0) header.role = word(at);
  while (at - at_ <= kLongestHeader) {
    const size_t begin = behind_blanks(at);
    if (mark_at(begin) == byte_of(kChannelMessage)) {
      header.whole = true;
      at = begin + kMarkBytes;
      break;
    }
    const Read read = read_item(at, header, last);
    if (read == Read::more) return false;
    if (read == Read::none) break;
  }
  if (last && behind_blanks(at) == text_.size()) at = text_.size();
  header_ = std::move(header);
  at_ = at;
  stage_ = Stage::content;
  first_ = true;
  return true;
}

std::optional<ChannelRun> ChannelReader::next(bool last) {
  while (stage_ != Stage::over) {
    if (stage_ == Stage::header && !read_header(last)) return {};
    const size_t end = next_mark(at_);
    const char32_t mark = mark_at(end);
    const bool ended = end == text_.size() || mark == 0;  // The answer ends here so far.
    const bool stray = mark == byte_of(kChannelMessage) || mark == byte_of(kChannelConstrain);
    const size_t to = ended && last ? text_.size() : end;
    const bool ends = ended ? last : !stray;
    const bool begins = mark == byte_of(kChannelStart) || mark == byte_of(kChannelName);
    const size_t from = std::max(at_, prompt_);
    const ChannelRun run{from - prompt_, std::max(to, from) - prompt_, first_, ends, !ended};
    at_ = ended || begins ? to : end + kMarkBytes;
    if (ends) stage_ = ended ? Stage::over : Stage::header;
    if (run.begin == run.end && !ends) {
      if (ended) return {};
      continue;
    }
    first_ = false;
    return run;
  }
  return {};
}

}  // namespace fidelio
