// app: lines that somebody types at a terminal. They can be edited, and are kept over programs in a file; what is pasted
// stays one text, whatever lines it has; Ctrl-C gives up the line and not the program.
#pragma once
#include <string>

#include "app/options/interrupt.h"

namespace fidelio::app {

struct Typed {
  enum class End { line, input_ended, interrupted } end = End::line;
  std::string text;  // without the newline at its end; a pasted text may hold others
};

// One at a time, for a program whose standard input and output are a terminal.
class LineEditor {
 public:
  // `history`: a file that lines are read from and kept in, "" for none.
  explicit LineEditor(std::string history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  Typed read(const std::string& prompt, InterruptCatcher& catcher);

 private:
  struct State;
  State* state_;
};

// The file that keeps lines from one program to the next: NAME in fidelio's folder of the user's state (XDG base
// directories), which is made; "" where the user has no home.
std::string state_file(const std::string& name);

// For whoever ends the program from another thread: the terminal as it was before a line was read.
void leave_terminal_as_it_was();

}  // namespace fidelio::app
