#include "runtime/page_table.h"

#include <algorithm>

namespace fidelio {

PageTable::PageTable(int64_t pages) {
  for (int64_t i = pages; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

bool PageTable::grow(int64_t id, int64_t tokens) {
  std::vector<int32_t>& held = held_[id];
  const int64_t more = pages_for(tokens) - static_cast<int64_t>(held.size());
  if (more > free_pages()) return false;
  for (int64_t i = 0; i < more; ++i) {
    held.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void PageTable::shrink(int64_t id, int64_t tokens) {
  const auto found = held_.find(id);
  if (found == held_.end()) return;
  while (static_cast<int64_t>(found->second.size()) > pages_for(tokens)) {
    free_.push_back(found->second.back());
    found->second.pop_back();
  }
}

void PageTable::release(int64_t id) {
  shrink(id, 0);
  held_.erase(id);
}

const std::vector<int32_t>& PageTable::pages(int64_t id) const {
  const auto found = held_.find(id);
  check(found != held_.end(), "sequence {} holds no cache pages", id);
  return found->second;
}

}  // namespace fidelio
