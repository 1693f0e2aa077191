// A free source of drafts: what followed the same tokens before.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace fidelio {

// Where the last tokens of a sequence occurred before, and what followed.
class Lookup {
 public:
  // Tokens of `history` beyond what was seen are taken in. What followed the longest earlier occurrence of its end, at
  // most `most` tokens; `matched` says how long that was, 0 if shorter than kShortest.
  std::span<const int32_t> propose(std::span<const int32_t> history, int64_t most, int64_t& matched);

 private:
  static constexpr int64_t kShortest = 3, kLongest = 32;
  // The slot of the kShortest tokens before `end`: it holds where their newest occurrence ended, or is empty.
  size_t slot_of(std::span<const int32_t> history, int64_t end) const;
  void take_in(std::span<const int32_t> history);

  std::vector<int32_t> ends_;  // a table with open addresses, at most half full; -1: empty
  int64_t seen_ = kShortest;   // ends before this one are in the table
};

}  // namespace fidelio
