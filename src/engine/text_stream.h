// A TextStream makes the text of an output as its tokens come, up to the first stop string.
//
// The newest text may still be the beginning of a stop string, or half a character. settled() is the part that no
// later token can change, so a client that receives it never has to take anything back.
//
// Stop strings end the answer. They are not searched for in what a model thinks before it answers (text/thinking.h),
// nor in the blanks between the thought and the answer. A stop string that spells a special token, shown or not, ends
// the text where that token comes. Of an answer in messages (text/channels.h) the messages that are shown are searched;
// the text holds all of them, with a character in place of each mark.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/thinking.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {

// TextRules say what is text and where it ends.
struct TextRules {
  bool special = false;              // special tokens are part of the text
  std::vector<int32_t> shown{};      // special tokens that are part of it in any case
  std::vector<std::string> stops{};  // none of them may be empty
  Thinking thinking{};               // how the text may begin
};

class TextStream {
 public:
  // Without a tokenizer there is no text, and there must be no stop strings. The text continues the prompt's: it is
  // what the tokenizer makes of all ids, without what it makes of the prompt's ids.
  TextStream(const Tokenizer* tokenizer, TextRules rules, std::span<const int32_t> prompt = {});

  // Adds a token. Returns true if a stop string is complete; then the text ends before it, and no token may follow.
  bool push(int32_t id);
  // Adds what the tokens so far have left pending, when no more will come. Returns true as push() does.
  bool finish();

  const std::string& text() const { return text_; }
  size_t settled() const;                               // bytes of text() that will not change
  int64_t stop_string() const { return stop_string_; }  // index of the stop string that is complete; -1 if none is
  std::string take_text() { return std::move(text_); }

 private:
  enum class Stage : uint8_t { undecided, thought, blanks, answer };
  struct Hidden {  // a special token that is not part of the text, as a range of the text that shows it
    size_t begin, end;
  };
  bool hides(int32_t id) const;
  bool append(const std::string& piece, bool last);
  bool hide(int32_t id);
  const std::pair<int32_t, std::string>* mark_of(int32_t id) const;
  std::string with_mark(std::string piece, const std::pair<int32_t, std::string>& mark) const;
  bool shows_message() const;
  void find_answer(bool last);
  void look(size_t& cut);
  void look_in_messages(size_t& cut, bool last);
  void look_for_special(size_t& cut);
  bool end_at(size_t cut);
  size_t without_hidden(size_t at) const;

  std::optional<Tokenizer> tokenizer_;
  std::optional<StreamingDetokenizer> detokenizer_;
  TextRules rules_;
  std::string text_;
  std::optional<ChannelReader> messages_;  // It exists if the answer consists of messages.
  Stage stage_ = Stage::answer;
  // This is where the answer, or its newest message that is shown, begins in the text; before the stages `blanks` and
  // `answer` it is where the thought begins.
  size_t answer_ = 0;
  size_t looked_ = 0;  // the text up to here was searched for the end of the thought or for stop strings
  // These are used if stop strings spell special tokens: those strings, and the text with its hidden tokens.
  std::vector<size_t> special_stops_;
  std::string full_;
  size_t full_looked_ = 0;
  std::vector<Hidden> hidden_;
  int64_t stop_string_ = -1;
  bool over_ = false;
};

}  // namespace fidelio
