#include "app/interrupt.h"

#include <atomic>

namespace fidelio::app {
namespace {
std::atomic<bool> catching = false, caught = false;
}  // namespace

InterruptCatcher::InterruptCatcher() {
  caught = false;
  catching = true;
}
InterruptCatcher::~InterruptCatcher() { catching = false; }
bool InterruptCatcher::asked() const { return caught; }

bool interrupt_was_caught() {
  if (!catching) return false;
  caught = true;
  return true;
}

}  // namespace fidelio::app
