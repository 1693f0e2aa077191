// PageTable: which pages of the KV cache belong to which sequence. Pure bookkeeping on the host; the storage is a
// backend's KvCache.
//
//   free ──grow──▶ held by one ──publish (full, final)──▶ held by several ──release──▶ idle: kept until memory is wanted
//     ▲                                                        ▲                        │            │
//     └──────────────────────── the longest idle first ────────┼────────────────────────┘            │
//                                                              └────────────── reuse ────────────────┘
//
// A page that is full and will not be written again may be published under its tokens and those before it. A new
// sequence that begins with the same tokens holds the same pages; tokens are compared, hashes only find candidates.
#pragma once
#include <array>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/backend.h"

namespace fidelio {

class PageTable {
 public:
  explicit PageTable(int64_t pages);

  int64_t free_pages() const { return static_cast<int64_t>(free_.size() + idle_.size()); }  // to be had at once
  static int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

  // Makes room for `tokens` positions of sequence `id` in all. False, and nothing changed, if too few pages are free.
  bool grow(int64_t id, int64_t tokens);
  // Gives back the pages beyond `tokens` positions (rejected drafts), or all of them.
  void shrink(int64_t id, int64_t tokens);
  void release(int64_t id);
  const std::vector<int32_t>& pages(int64_t id) const;

  // Gives a sequence that holds nothing yet the published pages its tokens begin with, at most those of `most` tokens.
  // Returns the positions they hold, a multiple of kPageTokens.
  int64_t reuse(int64_t id, std::span<const int32_t> tokens, int64_t most);
  int64_t published_tokens(int64_t id) const {  // reused ones included
    return static_cast<int64_t>(held_.at(id).published) * kPageTokens;
  }
  // The first `count` positions of the sequence are final and hold these tokens: its full pages may be reused.
  void publish(int64_t id, std::span<const int32_t> tokens, int64_t count);

 private:
  using Tokens = std::array<int32_t, kPageTokens>;
  struct Page {
    int32_t holders = 0;
    uint64_t serial = 0;  // of a published page: never given twice; 0: not published
    uint64_t before = 0;  // serial of the page before it in its sequence; 0: it is the first
    Tokens tokens;
    std::list<int32_t>::iterator idle;  // while published and held by nobody
  };
  struct Held {
    std::vector<int32_t> pages;
    size_t published = 0;      // the first so many have been published or reused
    uint64_t last_serial = 0;  // of the last of them
  };
  static uint64_t key_of(uint64_t before, std::span<const int32_t> tokens);
  int32_t find(uint64_t before, std::span<const int32_t> tokens) const;  // -1: not published
  int32_t take();
  void give_back(int32_t page);

  std::vector<Page> page_;
  std::vector<int32_t> free_;  // a stack: the page given back last is used first
  std::list<int32_t> idle_;    // the longest idle first
  std::unordered_map<uint64_t, int32_t> published_;
  std::unordered_map<int64_t, Held> held_;
  uint64_t next_serial_ = 1;
};

}  // namespace fidelio
