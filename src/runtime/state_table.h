// This file defines StateTable, which counts who holds the slots of a runner's states (step/state.h). A slot has a
// state that was written into it for as long as somebody holds it: the sequence that continues from it, and the
// published page of the cache after whose last position it is the state (a snapshot, page_table.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fidelio {

class StateTable {
 public:
  explicit StateTable(int64_t slots);

  // Returns a slot that nobody held, with one holder, or -1 if there is none.
  int32_t take();
  void hold(int32_t slot);
  // Takes a holder away. -1 stands for no slot, and is released without effect.
  void release(int32_t slot);
  int32_t holders(int32_t slot) const { return holders_[static_cast<size_t>(slot)]; }
  int64_t free_slots() const { return static_cast<int64_t>(free_.size()); }
  int64_t slots() const { return static_cast<int64_t>(holders_.size()); }

 private:
  std::vector<int32_t> holders_;  // by slot
  std::vector<int32_t> free_;     // a stack: the slot given back last is used first
};

}  // namespace fidelio
