// Progress of long work on standard error: one redrawn line with an estimate of the time left on a terminal, one JSON
// line per update otherwise, so that scripts can follow.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace fidelio {

class Progress {
 public:
  Progress(std::string task, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(int64_t done = 1, const std::string& note = {});

 private:
  void print(const std::string& note, bool last);
  std::string task_;
  int64_t total_, done_ = 0;
  bool terminal_;
  std::chrono::steady_clock::time_point start_, printed_;
};

}  // namespace fidelio
