// app: signals that stop an answer, or a server after its answers, instead of the program.
#pragma once
#include <functional>

namespace fidelio::app {

// While one is alive, SIGINT is noted and the program goes on.
class InterruptCatcher {
 public:
  InterruptCatcher();
  ~InterruptCatcher();
  InterruptCatcher(const InterruptCatcher&) = delete;
  InterruptCatcher& operator=(const InterruptCatcher&) = delete;
  bool asked() const;
  void forget();  // what was noted so far
};

// While one is alive, the first SIGINT or SIGTERM calls `stop`, on the thread that waits for signals; a second one ends
// the program as ever.
class StopCatcher {
 public:
  explicit StopCatcher(std::function<void()> stop);
  ~StopCatcher();
  StopCatcher(const StopCatcher&) = delete;
  StopCatcher& operator=(const StopCatcher&) = delete;
};

// For the thread that waits for signals: true if somebody catches this one.
bool signal_was_caught(int signal);

}  // namespace fidelio::app
