// TextStream: the text of an output as its tokens come, up to the first stop string.
//
// What the last tokens wrote may still be the beginning of a stop string, or half a character; settled() is what no
// later token can change, so a client that is sent it never has to take anything back.
//
// Stop strings end what is said: in what a model thinks before it answers (text/thinking.h) they are not looked for, nor
// in the blanks between the thought and the answer. One that spells a special token, be it shown or not, ends the text
// where that token comes.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/thinking.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {

// These rules say what is text, and where it ends.
struct TextRules {
  bool special = false;              // special tokens are part of the text
  std::vector<int32_t> shown{};      // special tokens that are so in any case
  std::vector<std::string> stops{};  // none of them empty
  Thinking thinking{};               // how the text may begin
};

class TextStream {
 public:
  // Without a tokenizer there is no text, and stop strings must be empty. The text continues the prompt's: it is what the
  // tokenizer makes of all ids, without what it makes of the prompt's.
  TextStream(const Tokenizer* tokenizer, TextRules rules, std::span<const int32_t> prompt = {});

  // True if a stop string was completed: the text ends before it, and nothing may follow.
  bool push(int32_t id);
  // What the tokens so far leave pending, when no more come; true as above.
  bool finish();

  const std::string& text() const { return text_; }
  size_t settled() const;                               // bytes of text() that stay
  int64_t stop_string() const { return stop_string_; }  // which one was completed; -1: none
  std::string take_text() { return std::move(text_); }

 private:
  enum class Stage : uint8_t { undecided, thought, blanks, answer };
  struct Hidden {  // a special token that is no part of the text, in the text that shows it
    size_t begin, end;
  };
  bool hides(int32_t id) const;
  bool append(const std::string& piece, bool last);
  bool hide(int32_t id);
  void find_answer(bool last);
  void look(size_t& cut);
  void look_for_special(size_t& cut);
  bool end_at(size_t cut);
  size_t without_hidden(size_t at) const;

  std::optional<Tokenizer> tokenizer_;
  std::optional<StreamingDetokenizer> detokenizer_;
  TextRules rules_;
  std::string text_;
  Stage stage_ = Stage::answer;
  size_t answer_ = 0;  // where the answer begins in the text; before `answer` and `blanks`: the thought
  size_t looked_ = 0;  // for the end of the thought, or for stop strings, up to here
  // These are used where stop strings spell special tokens: those strings, and the text with its hidden tokens.
  std::vector<size_t> special_stops_;
  std::string full_;
  size_t full_looked_ = 0;
  std::vector<Hidden> hidden_;
  int64_t stop_string_ = -1;
  bool over_ = false;
};

}  // namespace fidelio
