// TextStream: the text of an output as its tokens come, up to the first stop string.
//
// What the last tokens wrote may still be the beginning of a stop string, or half a character; settled() is what no
// later token can change, so a client that is sent it never has to take anything back.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace fidelio {

class TextStream {
 public:
  // Without a tokenizer there is no text, and stop strings must be empty. The text continues the prompt's: it is what the
  // tokenizer makes of all ids, without what it makes of the prompt's.
  TextStream(const Tokenizer* tokenizer, bool special_in_text, std::vector<std::string> stop_strings,
             std::span<const int32_t> prompt = {});

  // True if a stop string was completed: the text ends before it, and nothing may follow.
  bool push(int32_t id);
  // What the tokens so far leave pending, when no more come; true as above.
  bool finish();

  const std::string& text() const { return text_; }
  size_t settled() const;                               // bytes of text() that stay
  int64_t stop_string() const { return stop_string_; }  // which one was completed; -1: none
  std::string take_text() { return std::move(text_); }

 private:
  bool append(const std::string& piece);

  std::optional<StreamingDetokenizer> detokenizer_;
  std::vector<std::string> stop_strings_;
  std::string text_;
  int64_t stop_string_ = -1;
  bool over_ = false;
};

}  // namespace fidelio
