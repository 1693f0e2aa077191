// PageTable: which pages of the KV cache belong to which sequence. Pure bookkeeping on the host; the storage is a
// backend's KvCache.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernels/backend.h"

namespace fidelio {

class PageTable {
 public:
  explicit PageTable(int64_t pages);

  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  static int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

  // Makes room for `tokens` positions of sequence `id` in all. False, and nothing changed, if too few pages are free.
  bool grow(int64_t id, int64_t tokens);
  // Gives back the pages beyond `tokens` positions (rejected drafts), or all of them.
  void shrink(int64_t id, int64_t tokens);
  void release(int64_t id);
  const std::vector<int32_t>& pages(int64_t id) const;

 private:
  std::vector<int32_t> free_;  // a stack: the page given back last is used first
  std::unordered_map<int64_t, std::vector<int32_t>> held_;
};

}  // namespace fidelio
