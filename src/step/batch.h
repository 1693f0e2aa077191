// This file defines Batch: the rows that one step takes through a model, and the sequence that each of them belongs
// to.
//
//   ids       7 9 4 | 2 | 8 8 1 5     one row for each token
//   segments  0       1   2           rows of one sequence, at consecutive positions
//
// Prefill, decoding, verification and perplexity are all one such flat, ragged batch.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace fidelio {

// The purpose of a row chooses the family of kernels that computes it; the size of the batch never does. A row of a
// prompt comes with many others and may be multiplied in whole tiles. A row of output is one of decoding, of
// verification, or of the replay of tokens that were decoded before; it gets the bits of decoding one row.
enum class RowKind : uint8_t { prompt, output };

// A page of the cache holds the keys and values of this many positions.
constexpr int kPageTokens = 32;

// A segment is consecutive rows of one sequence at consecutive positions. A row attends to its own sequence at
// positions up to its own. A sequence has one segment in a batch; its earlier positions must be in the cache already.
struct Segment {
  int32_t first_row, rows;
  int32_t position;  // the position of the first row
  // These are a range of Batch::pages; page p of the sequence holds positions [p, p + 1) * kPageTokens.
  int32_t first_page, pages;
  RowKind kind;
  // In a model that keeps a state (step/state.h), this is the slot with the state before the first row. -1 is the state
  // of a sequence that begins.
  int32_t state = -1;
};

// After a row of the batch, the state of its sequence goes to a slot.
struct KeptState {
  int32_t row, slot;
  bool operator==(const KeptState&) const = default;
};

// A batch that is cleared and filled again keeps its memory.
struct Batch {
  std::vector<int32_t> ids;         // (n) tokens
  std::vector<int32_t> pages;       // the page lists of all segments, one after the other
  std::vector<int32_t> logit_rows;  // the rows whose logits are wanted
  std::vector<Segment> segments;    // in the order of their rows
  // These are in the order of their rows. No slot is in it twice, and a slot that a segment begins from may only be
  // written by rows of that segment.
  std::vector<KeptState> kept;

  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
  std::span<const int32_t> pages_of(const Segment& s) const {
    return std::span(pages).subspan(static_cast<size_t>(s.first_page), static_cast<size_t>(s.pages));
  }
  void clear() { ids.clear(), pages.clear(), logit_rows.clear(), segments.clear(), kept.clear(); }
  // Appends rows for `tokens`, the first of which stands at `position`; the last `wanted_logits` of them give logits.
  void append(std::span<const int32_t> tokens, int64_t position, std::span<const int32_t> own_pages,
              int64_t wanted_logits, RowKind kind) {
    const auto count = static_cast<int32_t>(tokens.size()), row = static_cast<int32_t>(ids.size());
    segments.push_back({row, count, static_cast<int32_t>(position), static_cast<int32_t>(pages.size()),
                        static_cast<int32_t>(own_pages.size()), kind});
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    pages.insert(pages.end(), own_pages.begin(), own_pages.end());
    for (int64_t i = count - wanted_logits; i < count; ++i) logit_rows.push_back(row + static_cast<int32_t>(i));
  }
  // These say of the segment that was appended last which slot it begins from, and which slot its state goes to after
  // its row `row`, counted from its first. Rows must be kept in ascending order.
  void begin_from(int32_t slot) { segments.back().state = slot; }
  void keep_state(int64_t row, int32_t slot) {
    kept.push_back({segments.back().first_row + static_cast<int32_t>(row), slot});
  }
};

}  // namespace fidelio
