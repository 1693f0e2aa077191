// This file defines TokenSpan, a range of a text's tokens.
#pragma once
#include <cstdint>

namespace fidelio {

struct TokenSpan {
  int64_t begin, end;  // the tokens [begin, end)
};

}  // namespace fidelio
