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
//
// In a model whose sequences keep a state besides pages (step/state.h), a published page may hold the state after its
// last position: a snapshot. A new sequence can only continue where there is one. When slots are short, the snapshot
// that was used least recently is dropped; its page stays.
#pragma once
#include <array>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/state_table.h"
#include "step/batch.h"

namespace fidelio {

class PageTable {
 public:
  // `states` has the slots of snapshots and must outlive the table. It is null for a model that keeps no state.
  explicit PageTable(int64_t pages, StateTable* states = nullptr);

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
  // tokens, and where the model keeps a state, at most those up to the last snapshot. Returns the number of positions
  // that they hold, a multiple of kPageTokens, and the slot of that snapshot, which the caller holds from now on.
  struct Reused {
    int64_t tokens = 0;
    int32_t state = -1;
  };
  Reused reuse(int64_t id, std::span<const int32_t> tokens, int64_t most);
  int64_t published_tokens(int64_t id) const {  // including reused positions
    return static_cast<int64_t>(held_.at(id).published) * kPageTokens;
  }
  // Publishes the full pages among the first `count` positions of a sequence, so that other sequences may reuse them.
  // These positions must be final and hold `tokens`.
  void publish(int64_t id, std::span<const int32_t> tokens, int64_t count);

  // Makes a slot the snapshot after the last position that a sequence has published. Returns the page that has this
  // slot now, or -1 if there is none or it has a snapshot already.
  int32_t keep_state(int64_t id, int32_t slot);
  // Drops a page's snapshot if it is this slot.
  void drop_state(int32_t page, int32_t slot);
  // Drops the snapshots that are this slot.
  void drop_states(int32_t slot);
  // Drops the snapshot that was used least recently among those whose slot nobody else holds. Returns false if there is
  // none.
  bool drop_oldest_state();
  int64_t snapshots() const { return static_cast<int64_t>(snapshots_.size()); }
  // Returns the snapshots whose slots would be free if they were dropped.
  int64_t free_snapshots() const;

 private:
  using Tokens = std::array<int32_t, kPageTokens>;
  struct Page {
    int32_t holders = 0;
    uint64_t serial = 0;  // of a published page, never given twice; 0 if the page is not published
    uint64_t before = 0;  // the serial of the page before it in its sequence; 0 if it is the first
    Tokens tokens;
    std::list<int32_t>::iterator idle;      // its place in idle_, while it is published and nobody holds it
    int32_t state = -1;                     // the slot of its snapshot; -1 if it has none
    std::list<int32_t>::iterator snapshot;  // its place in snapshots_, while it has one
  };
  struct Held {
    std::vector<int32_t> pages;
    size_t published = 0;      // the number of pages, from the first, that were published or reused
    uint64_t last_serial = 0;  // the serial of the last of those
    int32_t last_page = -1;    // the page with that serial, which may be one that another sequence published
  };
  static uint64_t key_of(uint64_t before, std::span<const int32_t> tokens);
  int32_t find(uint64_t before, std::span<const int32_t> tokens) const;  // returns -1 if the page is not published
  int32_t take();
  void give_back(int32_t page);

  std::vector<Page> page_;
  std::vector<int32_t> free_;  // a stack: the page given back last is used first
  std::list<int32_t> idle_;    // the page that has been idle longest comes first
  StateTable* states_;
  std::list<int32_t> snapshots_;  // the pages that have one, the one that was used least recently first
  std::unordered_map<uint64_t, int32_t> published_;
  std::unordered_map<int64_t, Held> held_;
  uint64_t next_serial_ = 1;
};

}  // namespace fidelio
