// serve: where the text of each token begins in a text, in characters, as completions tell it (text_offset).
#pragma once
#include <cstdint>
#include <span>

#include "serve/engine_thread.h"

namespace fidelio::serve {

class TextOffsets {
 public:
  // The offsets are of a text that continues what the tokens `before` say; without them, of a text of its own. A model
  // outlives its offsets.
  TextOffsets(const ServedModel& model, bool special_in_text, std::span<const int32_t> before);
  // Returns where this token's text begins; for one that only ends a character, the place behind that character.
  int64_t next(int32_t id);

 private:
  const ServedModel* model_;
  StreamingDetokenizer text_;
  int64_t settled_ = 0, at_ = 0;
};

}  // namespace fidelio::serve
