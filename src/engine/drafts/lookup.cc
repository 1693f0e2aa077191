#include "engine/drafts/lookup.h"

#include <algorithm>

namespace fidelio {

uint64_t Lookup::key(std::span<const int32_t> history, int64_t end) {
  uint64_t h = 0;
  for (int64_t i = end - kShortest; i < end; ++i)
    h = (h ^ static_cast<uint32_t>(history[static_cast<size_t>(i)])) * 0x9E3779B97F4A7C15u + (h >> 31);
  return h;
}

std::span<const int32_t> Lookup::propose(std::span<const int32_t> history, int64_t most, int64_t& matched) {
  const auto size = static_cast<int64_t>(history.size());
  matched = 0;
  for (seen_ = std::max(seen_, kShortest); seen_ < size; ++seen_) after_[key(history, seen_)] = seen_;
  if (size < kShortest) return {};
  const auto found = after_.find(key(history, size));
  if (found == after_.end()) return {};
  const int64_t end = found->second;
  while (matched < kLongest && matched < end &&
         history[static_cast<size_t>(end - 1 - matched)] == history[static_cast<size_t>(size - 1 - matched)])
    ++matched;
  if (matched < kShortest) return {};  // another end with the same key
  return history.subspan(static_cast<size_t>(end), static_cast<size_t>(std::min(most, size - end)));
}

}  // namespace fidelio
