// Progress of long work, on standard error: what a run does in stages, how far it is, and how long the whole will take.
//
//   Stages stages("compress", {{"quantising candidates", 3}, {"sensitivities", 2}, {"search", 4, 3}});
//   stages.next();                            // begins the first
//   Progress progress("quantise", 48);        // work of that stage, here or deep below
//   progress.advance();
//
//   [1/3] quantising candidates  ██████░░░░░░░░░░░░░░  29%  0:12, about 0:30 left     one bar, redrawn each second
//
// Stages weigh what they are expected to take, in any unit; the time left follows from what the finished ones took.
// Work without Stages is one stage of its own. A thread redraws, so that time goes on where work reports seldom.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio {

// automatic: a bar on a terminal, plain elsewhere. plain: a line now and then. json: an object a line each second
// (docs/json.md). none: nothing.
enum class ProgressMode : uint8_t { automatic, plain, json, none };
void set_progress_mode(ProgressMode mode);  // before the work begins

struct Stage {
  std::string name;
  double weight = 1;
  int parts = 1;  // how many Progress objects it is expected to see, one after another
};

// The stages of a run. One at a time; a second one that begins inside the first is a part of it.
class Stages {
 public:
  Stages(std::string task, std::vector<Stage> stages);
  ~Stages();  // says how long all took, unless an exception ends it
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;
  void next();  // ends the stage in progress, if there is one, and begins the next

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
  bool own_;  // no Stages were there
  int exceptions_;
};

// Prints to standard output, or to standard error, without leaving pieces of a bar between the lines.
void print_beside_progress(std::string_view text, std::FILE* stream = stdout);

// What is kept of the work in progress and how to go on with it, for whoever interrupts it: words for the command line
// to say when a signal ends the program. "" while there is nothing to say. Any thread may ask.
void set_words_on_interrupt(std::string words);
std::string words_on_interrupt();

// How far a run is, in [0, 1], and the seconds it has left: `took` seconds and `weight` of the finished stages, and in
// the one in progress `spent` seconds for `fraction` of its weight. Pure, for the bar and its tests. Negative seconds:
// not known yet.
struct StageShare {
  double weight = 1, spent = 0;
};
struct Outlook {
  double fraction = 0, seconds_left = -1;
};
Outlook outlook(const std::vector<StageShare>& stages, size_t current, double fraction);

}  // namespace fidelio
