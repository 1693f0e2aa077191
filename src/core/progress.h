// This file shows the progress of long work on standard error: the stages of a run, how much is done, and how long the
// whole will take.
//
//   Stages stages("compress", {{"quantising candidates", 3}, {"sensitivities", 2}, {"search", 4, 3}});
//   stages.next();                            // begins the first
//   Progress progress("quantise", 48);        // work of that stage, here or deep below
//   progress.advance();
//
//   [1/3] quantising candidates  ██████░░░░░░░░░░░░░░  29%  0:12, about 0:30 left     one bar, redrawn each second
//
// The weight of a stage is its expected duration, in any unit; the time left follows from what the finished stages
// took. Work without Stages counts as one stage of its own. A separate thread redraws the bar, so the time shown
// advances even where work reports seldom.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio {

// automatic shows a bar on a terminal and is plain elsewhere; plain prints a line now and then; json prints one object
// on a line each second (docs/json.md); none prints nothing.
enum class ProgressMode : uint8_t { automatic, plain, json, none };
void set_progress_mode(ProgressMode mode);  // It must be called before the work begins.

struct Stage {
  std::string name;
  double weight = 1;
  int parts = 1;  // It tells how many Progress objects are expected, one after another.
};

// These are the stages of a run, of which one is active at a time. A second Stages object that begins inside the first
// counts as a part of it.
class Stages {
 public:
  Stages(std::string task, std::vector<Stage> stages);
  ~Stages();  // It prints how long all took, unless an exception ends the scope.
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;
  void next();  // This ends the stage in progress, if there is one, and begins the next.

 private:
  bool outer_;
  int exceptions_;
};

class Progress {
 public:
  Progress(std::string task, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(int64_t done = 1);

 private:
  bool own_;  // It is true if no Stages existed when the work began.
  int exceptions_;
};

// Prints to standard output, or to standard error, without leaving pieces of a bar between the lines.
void print_beside_progress(std::string_view text, std::FILE* stream = stdout);

// These are the words that the command line prints when a signal ends the program. They tell what is kept of the work
// in progress and how to resume it. They are "" while there is nothing to tell. Any thread may call both functions.
void set_words_on_interrupt(std::string words);
std::string words_on_interrupt();

// outlook() computes how far a run is, in [0, 1], and how many seconds are left. A finished stage gives its weight and
// the seconds it took (`spent`); the stage in progress gives the seconds it has spent for `fraction` of its weight.
// Negative seconds mean that the time is not known yet. The function has no side effects; the bar and its tests use it.
struct StageShare {
  double weight = 1, spent = 0;
};
struct Outlook {
  double fraction = 0, seconds_left = -1;
};
Outlook outlook(const std::vector<StageShare>& stages, size_t current, double fraction);

}  // namespace fidelio
