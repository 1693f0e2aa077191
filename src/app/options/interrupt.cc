#include "app/options/interrupt.h"

#include <signal.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace fidelio::app {
namespace {
std::atomic<bool> catching = false, caught = false;
std::mutex stop_mutex;
std::function<void()> stop_asked;
}  // namespace

InterruptCatcher::InterruptCatcher() {
  caught = false;
  catching = true;
}
InterruptCatcher::~InterruptCatcher() { catching = false; }
bool InterruptCatcher::asked() const { return caught; }
void InterruptCatcher::forget() { caught = false; }

StopCatcher::StopCatcher(std::function<void()> stop) {
  const std::lock_guard lock(stop_mutex);
  stop_asked = std::move(stop);
}
StopCatcher::~StopCatcher() {
  const std::lock_guard lock(stop_mutex);
  stop_asked = nullptr;
}

bool signal_was_caught(int signal) {
  if (signal == SIGINT && catching) {
    caught = true;
    return true;
  }
  // `stop` is called under the lock, so the object that is asked to stop cannot be destroyed meanwhile.
  const std::lock_guard lock(stop_mutex);
  if (signal == SIGHUP || !stop_asked) return false;
  std::exchange(stop_asked, nullptr)();
  return true;
}

}  // namespace fidelio::app
