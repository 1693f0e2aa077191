// This file reads answers in OpenAI's harmony form, which gpt-oss writes. Such an answer is one or more messages, each
// of them on a channel:
//
//   <|start|>assistant<|channel|>analysis<|message|>a thought<|end|>
//   <|start|>assistant<|channel|>commentary<|message|>a text before a call, which is shown<|end|>
//   <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{..}<|call|>
//   <|start|>assistant<|channel|>final<|message|>the answer<|return|>
//
// The marks are special tokens. In a text that is read here each of them is one character of a private-use area, so a
// mark that an answer quotes, which consists of other tokens, stays text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fidelio {

class ChatTemplate;
class Tokenizer;

// These are the marks, and the characters that stand for them.
struct ChannelMark {
  std::string_view token, text;
};
inline constexpr ChannelMark kChannelStart{"<|start|>", "\U000F0010"}, kChannelName{"<|channel|>", "\U000F0011"},
    kChannelMessage{"<|message|>", "\U000F0012"}, kChannelConstrain{"<|constrain|>", "\U000F0013"},
    kChannelEnd{"<|end|>", "\U000F0014"}, kChannelCall{"<|call|>", "\U000F0015"},
    kChannelReturn{"<|return|>", "\U000F0016"};

// Channels tells how a model that answers in this form begins an answer.
struct Channels {
  std::string begun;  // The prompt ends with this after its last <|start|>, for example "assistant".
  std::vector<std::pair<int32_t, std::string>> marks;  // These are the ids of the marks, and their characters.
};
// Returns nothing where the template does not write this form, or where its marks are no special tokens.
std::optional<Channels> channels_of(const ChatTemplate& chat, const Tokenizer& tokenizer, std::string_view prompt);
// Tells whether a template writes this form.
bool writes_channels(std::string_view template_source);
std::string with_mark_texts(std::string text);   // It puts the characters in place of tokens that are spelt out.
std::string with_mark_tokens(std::string text);  // It does the opposite.

// This is what stands before a message's content.
struct ChannelHeader {
  enum class Kind : uint8_t { thought, text, call };
  std::string role{}, channel{}, recipient{}, type{};
  bool whole = false;  // It ended with <|message|>.
  // A message to somebody is a call. Channels that are not known hold text, so nothing of them is lost.
  Kind kind() const;
  std::string_view function() const;  // It is the recipient without "functions.".
};

// This is a run of a message's content: the bytes [begin, end) of the answer.
struct ChannelRun {
  size_t begin, end;
  bool first, ends;  // It is the first run of its message, and nothing of the message follows it.
  bool marked;       // A mark of four bytes follows it.
};

// A reader takes an answer as it arrives, and returns only what a longer answer cannot change. Headers may lack parts:
// without a channel, or where a header is none at all, what follows is text.
class ChannelReader {
 public:
  explicit ChannelReader(std::string begun) : text_(std::move(begun)), prompt_(text_.size()) {}

  void push(std::string_view text) { text_ += text; }
  // Returns the next run, or nothing if more must arrive. `last` says that no more will.
  std::optional<ChannelRun> next(bool last);
  std::string_view text_of(const ChannelRun& run) const {
    return std::string_view(text_).substr(prompt_ + run.begin, run.end - run.begin);
  }
  bool in_header() const { return stage_ == Stage::header; }
  const ChannelHeader& header() const { return header_; }             // It is that of the newest run's message.
  size_t given() const { return at_ < prompt_ ? 0 : at_ - prompt_; }  // All runs so far lie before this place.

 private:
  enum class Stage : uint8_t { header, content, over };
  enum class Read : uint8_t { whole, none, more };
  char32_t mark_at(size_t at) const;
  bool may_become_mark(size_t at) const;
  size_t next_mark(size_t from) const;
  size_t behind_blanks(size_t at) const;
  std::string word(size_t& at) const;
  Read read_item(size_t& at, ChannelHeader& header, bool last) const;
  Read read_type(size_t& at, size_t word_at, ChannelHeader& header, bool last) const;
  bool read_header(bool last);

  std::string text_;
  size_t prompt_;  // It is the part of the text that the prompt has.
  size_t at_ = 0;  // A header begins here, or the next run.
  Stage stage_ = Stage::header;
  bool first_ = true;
  ChannelHeader header_{};
};

}  // namespace fidelio
