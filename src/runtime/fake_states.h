// This file keeps states for FakeRunner (step/state.h): running sums over a sequence's rows so far, which depend on
// each row's token and on whether a whole chunk of a prompt was computed at once. A state that belongs to other rows
// shows in every later sum, and one that belongs to another position is refused.
#pragma once
#include <algorithm>
#include <vector>

#include "core/error.h"
#include "step/batch.h"
#include "step/state.h"

namespace fidelio {

inline uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class FakeStates {
 public:
  struct State {
    uint64_t sum = 0;
    int64_t position = 0;  // rows so far
  };
  static State after(State state, int32_t id, bool in_whole_chunk, bool drafts) {
    const auto token = static_cast<uint64_t>(id) << 2 | (drafts ? 2u : 0u) | (in_whole_chunk ? 1u : 0u);
    return {state.sum * 3 + splitmix64(token), state.position + 1};
  }

  void allocate(int64_t slots) { states_.assign(static_cast<size_t>(slots), {}); }
  int64_t slots() const { return static_cast<int64_t>(states_.size()); }
  uint64_t sum_after(int32_t row) const { return of_rows_.at(static_cast<size_t>(row)).sum; }

  // Runs the rows of all segments, each from its slot, and keeps states as the batch says. What a segment begins from
  // is read before anything is written.
  void run(const Batch& batch, bool drafts) {
    std::vector<State> begins;
    for (const Segment& s : batch.segments) {
      check((s.state >= 0) == (s.position > 0), "position {} begins from slot {}", s.position, s.state);
      begins.push_back(s.state < 0 ? State{} : states_.at(static_cast<size_t>(s.state)));
      check(begins.back().position == s.position, "position {} begins from the state of position {}", s.position,
            begins.back().position);
    }
    of_rows_.assign(batch.ids.size(), {});
    for (size_t i = 0; i < begins.size(); ++i) run(batch, batch.segments[i], begins[i], drafts);
    keep(batch);
  }

 private:
  void run(const Batch& batch, const Segment& s, State state, bool drafts) {
    for (int32_t row = s.first_row; row < s.first_row + s.rows; ++row) {
      const int64_t chunk = (s.position + row - s.first_row) / kStateChunk * kStateChunk;
      const bool whole = s.kind == RowKind::prompt && chunk >= s.position && chunk + kStateChunk <= s.position + s.rows;
      check(whole || s.kind == RowKind::output, "a row of a prompt at position {} is not in a whole chunk",
            s.position + row - s.first_row);
      of_rows_[static_cast<size_t>(row)] = state = after(state, batch.ids[static_cast<size_t>(row)], whole, drafts);
    }
  }
  void keep(const Batch& batch) {
    std::vector<int32_t> slots;
    for (const KeptState& kept : batch.kept) {
      check(std::ranges::find(slots, kept.slot) == slots.end(), "slot {} is written twice", kept.slot);
      slots.push_back(kept.slot);
      for (const Segment& s : batch.segments)
        check(s.state != kept.slot || (kept.row >= s.first_row && kept.row < s.first_row + s.rows),
              "slot {} is written while another sequence begins from it", kept.slot);
      states_.at(static_cast<size_t>(kept.slot)) = of_rows_.at(static_cast<size_t>(kept.row));
    }
  }

  std::vector<State> states_;   // by slot
  std::vector<State> of_rows_;  // after the rows of the batch
};

}  // namespace fidelio
