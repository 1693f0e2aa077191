// Lookup is a source of drafts that costs nothing: the tokens that followed the same tokens earlier in the text.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace fidelio {

// A Lookup finds where the last tokens of a sequence occurred before, and what followed there.
class Lookup {
 public:
  // Takes in the tokens of `history` that it has not seen. Returns what followed the longest earlier occurrence of
  // the history's end, at most `most` tokens. `matched` receives the length of that occurrence; it is 0, and nothing
  // is returned, if that would be less than kShortest.
  std::span<const int32_t> propose(std::span<const int32_t> history, int64_t most, int64_t& matched);

 private:
  static constexpr int64_t kShortest = 3, kLongest = 32;
  // Returns the slot of the kShortest tokens before `end`. The slot holds where their newest occurrence ended, or is
  // empty.
  size_t slot_of(std::span<const int32_t> history, int64_t end) const;
  void take_in(std::span<const int32_t> history);

  std::vector<int32_t> ends_;  // a table with open addressing, at most half full; -1 is empty
  int64_t seen_ = kShortest;   // ends before this one are in the table
};

}  // namespace fidelio
