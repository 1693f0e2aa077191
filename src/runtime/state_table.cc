#include "runtime/state_table.h"

#include "core/error.h"

namespace fidelio {

StateTable::StateTable(int64_t slots) : holders_(static_cast<size_t>(slots), 0) {
  for (int64_t i = slots; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

int32_t StateTable::take() {
  if (free_.empty()) return -1;
  const int32_t slot = free_.back();
  free_.pop_back();
  holders_[static_cast<size_t>(slot)] = 1;
  return slot;
}

void StateTable::hold(int32_t slot) {
  check(holders(slot) > 0, "slot {} is held although its state is lost", slot);
  ++holders_[static_cast<size_t>(slot)];
}

void StateTable::release(int32_t slot) {
  if (slot < 0) return;
  check(holders(slot) > 0, "slot {} is released although nobody holds it", slot);
  if (--holders_[static_cast<size_t>(slot)] == 0) free_.push_back(slot);
}

}  // namespace fidelio
