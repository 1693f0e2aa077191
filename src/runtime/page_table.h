// This file defines PageTable, which says which pages of the KV cache belong to which sequence. It only keeps account
// on the host; the storage is a backend's KvCache.
//
//   free ──grow──▶ held by one ──publish (full, final)──▶ held by several ──release──▶ idle: kept until memory is short
//     ▲                                                        ▲                        │            │
//     └──────────────────────── the longest idle first ────────┼────────────────────────┘            │
//                                                              └────────────── reuse ────────────────┘
//
// A page that is full and will not be written again may be published under its tokens and all tokens before it. A new
// sequence that begins with the same tokens then holds the same pages. Tokens are compared; hashes only find
// candidates.
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

  // Returns the number of pages that grow() can take at once.
  int64_t free_pages() const { return static_cast<int64_t>(free_.size() + idle_.size()); }
  static int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

  // Makes room for `tokens` positions of sequence `id` in all. Returns false, and changes nothing, if too few pages
  // are free.
  bool grow(int64_t id, int64_t tokens);
  // Gives back the pages beyond `tokens` positions, which rejected drafts leave.
  void shrink(int64_t id, int64_t tokens);
  // Gives back all pages of a sequence.
  void release(int64_t id);
  // Returns the pages of a sequence in the order of its positions. Throws Error if it holds none.
  const std::vector<int32_t>& pages(int64_t id) const;

  // Gives a sequence that holds nothing yet the published pages that its tokens begin with, at most those of `most`
  // tokens. Returns the number of positions that they hold, a multiple of kPageTokens.
  int64_t reuse(int64_t id, std::span<const int32_t> tokens, int64_t most);
  int64_t published_tokens(int64_t id) const {  // including reused positions
    return static_cast<int64_t>(held_.at(id).published) * kPageTokens;
  }
  // Publishes the full pages among the first `count` positions of a sequence, so that other sequences may reuse them.
  // These positions must be final and hold `tokens`.
  void publish(int64_t id, std::span<const int32_t> tokens, int64_t count);

 private:
  using Tokens = std::array<int32_t, kPageTokens>;
  struct Page {
    int32_t holders = 0;
    uint64_t serial = 0;  // of a published page, never given twice; 0 if the page is not published
    uint64_t before = 0;  // the serial of the page before it in its sequence; 0 if it is the first
    Tokens tokens;
    std::list<int32_t>::iterator idle;  // its place in idle_, while it is published and nobody holds it
  };
  struct Held {
    std::vector<int32_t> pages;
    size_t published = 0;      // the number of pages, from the first, that were published or reused
    uint64_t last_serial = 0;  // the serial of the last of those
  };
  static uint64_t key_of(uint64_t before, std::span<const int32_t> tokens);
  int32_t find(uint64_t before, std::span<const int32_t> tokens) const;  // returns -1 if the page is not published
  int32_t take();
  void give_back(int32_t page);

  std::vector<Page> page_;
  std::vector<int32_t> free_;  // a stack: the page given back last is used first
  std::list<int32_t> idle_;    // the page that has been idle longest comes first
  std::unordered_map<uint64_t, int32_t> published_;
  std::unordered_map<int64_t, Held> held_;
  uint64_t next_serial_ = 1;
};

}  // namespace fidelio
