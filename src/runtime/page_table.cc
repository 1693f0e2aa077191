#include "runtime/page_table.h"

#include <algorithm>

#include "core/error.h"

namespace fidelio {

PageTable::PageTable(int64_t pages, StateTable* states) : page_(static_cast<size_t>(pages)), states_(states) {
  for (int64_t i = pages; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

int32_t PageTable::take() {
  int32_t page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    page = idle_.front();
    idle_.pop_front();
    Page& p = page_[static_cast<size_t>(page)];
    published_.erase(key_of(p.before, p.tokens));
    p.serial = 0;
    drop_state(page, p.state);
  }
  page_[static_cast<size_t>(page)].holders = 1;
  return page;
}

void PageTable::give_back(int32_t page) {
  Page& p = page_[static_cast<size_t>(page)];
  if (--p.holders > 0) return;
  if (p.serial == 0)
    free_.push_back(page);
  else
    p.idle = idle_.insert(idle_.end(), page);
}

bool PageTable::grow(int64_t id, int64_t tokens) {
  std::vector<int32_t>& held = held_[id].pages;
  const int64_t more = pages_for(tokens) - static_cast<int64_t>(held.size());
  if (more > free_pages()) return false;
  for (int64_t i = 0; i < more; ++i) held.push_back(take());
  return true;
}

void PageTable::shrink(int64_t id, int64_t tokens) {
  const auto found = held_.find(id);
  if (found == held_.end()) return;
  std::vector<int32_t>& pages = found->second.pages;
  while (static_cast<int64_t>(pages.size()) > pages_for(tokens)) {
    give_back(pages.back());
    pages.pop_back();
  }
}

void PageTable::release(int64_t id) {
  shrink(id, 0);
  held_.erase(id);
}

const std::vector<int32_t>& PageTable::pages(int64_t id) const {
  const auto found = held_.find(id);
  check(found != held_.end(), "sequence {} holds no cache pages", id);
  return found->second.pages;
}

uint64_t PageTable::key_of(uint64_t before, std::span<const int32_t> tokens) {
  uint64_t h = before * 0x9E3779B97F4A7C15u;
  for (int32_t t : tokens) {
    h = (h ^ static_cast<uint32_t>(t)) * 0xBF58476D1CE4E5B9u;
    h ^= h >> 29;
  }
  return h;
}

int32_t PageTable::find(uint64_t before, std::span<const int32_t> tokens) const {
  const auto found = published_.find(key_of(before, tokens));
  if (found == published_.end()) return -1;
  const Page& p = page_[static_cast<size_t>(found->second)];
  const bool same = p.before == before && std::equal(tokens.begin(), tokens.end(), p.tokens.begin());
  return same ? found->second : -1;
}

PageTable::Reused PageTable::reuse(int64_t id, std::span<const int32_t> tokens, int64_t most) {
  Held& held = held_[id];
  check(held.pages.empty(), "sequence {} holds pages already", id);
  most = std::min(most, static_cast<int64_t>(tokens.size()));
  size_t usable = 0;  // the pages up to where a sequence can continue
  uint64_t before = 0;
  for (int64_t at = 0; at + kPageTokens <= most; at += kPageTokens) {
    const int32_t page = find(before, tokens.subspan(static_cast<size_t>(at), kPageTokens));
    if (page < 0) break;
    const Page& p = page_[static_cast<size_t>(page)];
    held.pages.push_back(page);
    before = p.serial;
    if (states_ == nullptr || p.state >= 0) usable = held.pages.size();
  }
  held.pages.resize(usable);
  held.published = usable;
  if (usable == 0) return {};
  for (const int32_t page : held.pages)
    if (Page& p = page_[static_cast<size_t>(page)]; p.holders++ == 0) idle_.erase(p.idle);
  held.last_page = held.pages.back();
  Page& last = page_[static_cast<size_t>(held.last_page)];
  held.last_serial = last.serial;
  Reused reused{static_cast<int64_t>(usable) * kPageTokens, last.state};
  if (states_ == nullptr) return reused;
  states_->hold(last.state);
  snapshots_.splice(snapshots_.end(), snapshots_, last.snapshot);  // it is the one used most recently now
  return reused;
}

int32_t PageTable::keep_state(int64_t id, int32_t slot) {
  const int32_t page = held_.at(id).last_page;
  if (page < 0) return -1;
  Page& p = page_[static_cast<size_t>(page)];
  if (p.serial != held_.at(id).last_serial || p.state >= 0) return -1;
  states_->hold(slot);
  p.state = slot;
  p.snapshot = snapshots_.insert(snapshots_.end(), page);
  return page;
}

void PageTable::drop_state(int32_t page, int32_t slot) {
  Page& p = page_[static_cast<size_t>(page)];
  if (slot < 0 || p.state != slot) return;
  states_->release(slot);
  p.state = -1;
  snapshots_.erase(p.snapshot);
}

void PageTable::drop_states(int32_t slot) {
  std::erase_if(snapshots_, [&](int32_t page) {
    Page& p = page_[static_cast<size_t>(page)];
    if (p.state != slot) return false;
    states_->release(slot);
    p.state = -1;
    return true;
  });
}

bool PageTable::drop_oldest_state() {
  const auto alone = [&](int32_t page) { return states_->holders(page_[static_cast<size_t>(page)].state) == 1; };
  const auto oldest = std::ranges::find_if(snapshots_, alone);
  if (oldest == snapshots_.end()) return false;
  drop_state(*oldest, page_[static_cast<size_t>(*oldest)].state);
  return true;
}

int64_t PageTable::free_snapshots() const {
  return std::ranges::count_if(
      snapshots_, [&](int32_t page) { return states_->holders(page_[static_cast<size_t>(page)].state) == 1; });
}

void PageTable::publish(int64_t id, std::span<const int32_t> tokens, int64_t count) {
  Held& held = held_.at(id);
  for (; static_cast<int64_t>(held.published + 1) * kPageTokens <= count; ++held.published) {
    const auto own = tokens.subspan(held.published * kPageTokens, kPageTokens);
    const int32_t known = find(held.last_serial, own), page = held.pages[held.published];
    Page& p = page_[static_cast<size_t>(page)];
    if (known < 0) {
      p.before = held.last_serial;
      std::copy(own.begin(), own.end(), p.tokens.begin());
      // If two keys collide, the page that was published first stays the one that is found.
      if (published_.emplace(key_of(p.before, own), page).second) p.serial = next_serial_++;
      if (p.serial == 0) return;
    }
    held.last_page = known < 0 ? page : known;
    held.last_serial = page_[static_cast<size_t>(held.last_page)].serial;
  }
}

}  // namespace fidelio
