// This file computes where the text of each token begins in the whole text, in characters, as completions return it
// (text_offset).
#pragma once
#include <cstdint>
#include <span>

#include "serve/engine_thread.h"

namespace fidelio::serve {

class TextOffsets {
 public:
  // The offsets are those of a text that continues the tokens `before`, or of a text of its own if there are none. The
  // model must outlive the offsets.
  TextOffsets(const ServedModel& model, bool special_in_text, std::span<const int32_t> before);
  // Returns where the text of this token begins. For a token that only ends a character it is the place after that
  // character.
  int64_t next(int32_t id);

 private:
  const ServedModel* model_;
  StreamingDetokenizer text_;
  int64_t settled_ = 0, at_ = 0;
};

}  // namespace fidelio::serve
