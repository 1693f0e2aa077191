// This file catches signals that stop an answer, or a server after its answers, instead of the program.
#pragma once
#include <functional>

namespace fidelio::app {

// While an object of this class exists, SIGINT is noted and the program continues.
class InterruptCatcher {
 public:
  InterruptCatcher();
  ~InterruptCatcher();
  InterruptCatcher(const InterruptCatcher&) = delete;
  InterruptCatcher& operator=(const InterruptCatcher&) = delete;
  bool asked() const;
  void forget();  // It forgets what was noted so far.
};

// While an object of this class exists, the first SIGINT or SIGTERM calls `stop`, on the thread that waits for signals.
// A second one ends the program as usual.
class StopCatcher {
 public:
  explicit StopCatcher(std::function<void()> stop);
  ~StopCatcher();
  StopCatcher(const StopCatcher&) = delete;
  StopCatcher& operator=(const StopCatcher&) = delete;
};

// Returns true if an object catches this signal. The thread that waits for signals calls it.
bool signal_was_caught(int signal);

}  // namespace fidelio::app
