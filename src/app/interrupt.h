// app: Ctrl-C that stops an answer instead of the program.
#pragma once

namespace fidelio::app {

// While one is alive, SIGINT is noted and the program goes on.
class InterruptCatcher {
 public:
  InterruptCatcher();
  ~InterruptCatcher();
  InterruptCatcher(const InterruptCatcher&) = delete;
  InterruptCatcher& operator=(const InterruptCatcher&) = delete;
  bool asked() const;
};

// For the thread that waits for signals: true if somebody catches this one.
bool interrupt_was_caught();

}  // namespace fidelio::app
