#include "engine/drafts/lookup.h"

#include <algorithm>
#include <bit>

namespace fidelio {

size_t Lookup::slot_of(std::span<const int32_t> history, int64_t end) const {
  const auto tokens = [&](int64_t at) { return history.subspan(static_cast<size_t>(at - kShortest), kShortest); };
  const auto own = tokens(end);
  uint64_t h = 0;
  for (int32_t id : own) h = (h ^ static_cast<uint32_t>(id)) * 0x9E3779B97F4A7C15u, h ^= h >> 32;
  const size_t mask = ends_.size() - 1;
  size_t slot = h & mask;
  while (ends_[slot] >= 0 && !std::ranges::equal(tokens(ends_[slot]), own)) slot = (slot + 1) & mask;
  return slot;
}

void Lookup::take_in(std::span<const int32_t> history) {
  const auto size = history.size();
  if (ends_.size() < 2 * size) {
    ends_.assign(std::bit_ceil(4 * size), -1);
    seen_ = kShortest;
  }
  for (; seen_ < static_cast<int64_t>(size); ++seen_) ends_[slot_of(history, seen_)] = static_cast<int32_t>(seen_);
}

std::span<const int32_t> Lookup::propose(std::span<const int32_t> history, int64_t most, int64_t& matched) {
  const auto size = static_cast<int64_t>(history.size());
  matched = 0;
  if (size < kShortest) return {};
  take_in(history);
  const int64_t end = ends_[slot_of(history, size)];
  if (end < 0) return {};
  while (matched < kLongest && matched < end &&
         history[static_cast<size_t>(end - 1 - matched)] == history[static_cast<size_t>(size - 1 - matched)])
    ++matched;
  return history.subspan(static_cast<size_t>(end), static_cast<size_t>(std::min(most, size - end)));
}

}  // namespace fidelio
