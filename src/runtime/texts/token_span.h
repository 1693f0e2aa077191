// A stretch of a text's tokens.
#pragma once
#include <cstdint>

namespace fidelio {

struct TokenSpan {
  int64_t begin, end;  // the tokens [begin, end)
};

}  // namespace fidelio
