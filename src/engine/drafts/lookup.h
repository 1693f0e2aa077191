// A free source of drafts: what followed the same tokens before.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>

namespace fidelio {

// Where the last tokens of a sequence occurred before, and what followed.
class Lookup {
 public:
  // Tokens of `history` beyond what was seen are taken in. What followed the longest earlier occurrence of its end, at
  // most `most` tokens; `matched` says how long that was, 0 if shorter than kShortest.
  std::span<const int32_t> propose(std::span<const int32_t> history, int64_t most, int64_t& matched);

 private:
  static constexpr int64_t kShortest = 3, kLongest = 32;
  static uint64_t key(std::span<const int32_t> history, int64_t end);
  std::unordered_map<uint64_t, int64_t> after_;  // of the last kShortest tokens: where the newest occurrence ended
  int64_t seen_ = 0;
};

}  // namespace fidelio
