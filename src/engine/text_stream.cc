#include "engine/text_stream.h"

#include <algorithm>

#include "core/error.h"

namespace fidelio {

TextStream::TextStream(const Tokenizer* tokenizer, bool special_in_text, std::vector<std::string> stop_strings,
                       std::span<const int32_t> prompt)
    : stop_strings_(std::move(stop_strings)) {
  for (const std::string& stop : stop_strings_) check(!stop.empty(), "a stop string is empty");
  check(stop_strings_.empty() || tokenizer != nullptr, "stop strings need a tokenizer to be found");
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, !special_in_text, prompt);
}

bool TextStream::push(int32_t id) { return detokenizer_ && append(detokenizer_->push(id)); }

bool TextStream::finish() {
  const bool cut = detokenizer_ && !over_ && append(detokenizer_->finish());
  over_ = true;
  return cut;
}

// A stop string may begin in the text already there, but not more than its own length before the piece.
bool TextStream::append(const std::string& piece) {
  const size_t before = text_.size();
  text_ += piece;
  size_t cut = std::string::npos;
  for (size_t i = 0; i < stop_strings_.size(); ++i) {
    const std::string& stop = stop_strings_[i];
    const size_t found = text_.find(stop, before - std::min(before, stop.size() - 1));
    if (found < cut) cut = found, stop_string_ = static_cast<int64_t>(i);
  }
  if (cut == std::string::npos) return false;
  text_.resize(cut);
  return over_ = true;
}

size_t TextStream::settled() const {
  if (over_) return text_.size();
  size_t held = 0;  // the longest end of the text that a stop string begins with
  for (const std::string& stop : stop_strings_)
    for (size_t n = std::min(stop.size() - 1, text_.size()); n > held; --n)
      if (text_.compare(text_.size() - n, n, stop, 0, n) == 0) held = n;
  return text_.size() - held;
}

}  // namespace fidelio
