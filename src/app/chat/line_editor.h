// This file reads lines that a person types at a terminal. Lines can be edited and are kept in a file between runs.
// Pasted text stays one text, however many lines it has. Ctrl-C gives up the line and not the program.
#pragma once
#include <string>

#include "app/options/interrupt.h"

namespace fidelio::app {

struct Typed {
  enum class End { line, input_ended, interrupted } end = End::line;
  std::string text;  // It has no newline at its end; pasted text may contain others.
};

// Only one may exist at a time, in a program whose standard input and output are a terminal.
class LineEditor {
 public:
  // Lines are read from the file `history` and kept in it; "" means none.
  explicit LineEditor(std::string history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  Typed read(const std::string& prompt, InterruptCatcher& catcher);

 private:
  struct State;
  State* state_;
};

// Returns the file that keeps lines from one run to the next: NAME in fidelio's folder of the user's state (XDG base
// directories), which is created. Returns "" where the user has no home.
std::string state_file(const std::string& name);

// Restores the terminal as it was before a line was read. A thread that ends the program calls it.
void leave_terminal_as_it_was();

}  // namespace fidelio::app
