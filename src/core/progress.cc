#include "core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace fidelio {
namespace {

std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

Progress::Progress(std::string task, int64_t total)
    : task_(std::move(task)),
      total_(total),
      terminal_(::isatty(2) != 0),
      start_(std::chrono::steady_clock::now()),
      printed_(start_) {}

Progress::~Progress() {
  if (done_ > 0) print({}, true);
}

void Progress::advance(int64_t done, const std::string& note) {
  done_ += done;
  const auto now = std::chrono::steady_clock::now();
  if (now - printed_ < std::chrono::milliseconds(terminal_ ? 100 : 5000)) return;
  printed_ = now;
  print(note, false);
}

void Progress::print(const std::string& note, bool last) {
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double left = done_ > 0 ? elapsed * static_cast<double>(total_ - done_) / static_cast<double>(done_) : 0;
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{} {}/{} {} {}{}", task_, done_, total_,
               last ? "took " + clock_text(elapsed) : "left " + clock_text(left), note, last ? "\n" : "");
  } else {
    fmt::print(stderr,
               "{{\"task\": \"{}\", \"done\": {}, \"total\": {}, \"seconds\": {:.1f}, \"seconds_left\": {:.1f}}}\n",
               task_, done_, total_, elapsed, left);
  }
  std::fflush(stderr);
}

}  // namespace fidelio
