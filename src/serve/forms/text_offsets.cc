#include "serve/forms/text_offsets.h"

#include <algorithm>

namespace fidelio::serve {
namespace {

int64_t beginning_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

TextOffsets::TextOffsets(const ServedModel& model, bool special_in_text, std::span<const int32_t> before)
    : model_(&model), text_(model.tokenizer, !special_in_text, before) {}

// Offsets follow the real text, in which a first space or a special token may be left out. While some of the text is
// held back, the characters that begin in the token's own bytes are counted.
int64_t TextOffsets::next(int32_t id) {
  const int64_t begin = at_;
  settled_ += beginning_characters(text_.push(id));
  at_ = text_.pending() ? at_ + beginning_characters(model_->tokens->bytes(id)) : settled_;
  return begin;
}

}  // namespace fidelio::serve
