// Seconds is time that was spent, by the clock on the wall and by this process on all its cores. The first depends on
// what else the machine does at the time; the second does not.
#pragma once
#include <chrono>
#include <ctime>

namespace fidelio {

struct Seconds {
  double wall = 0, cpu = 0;

  static Seconds now() {
    timespec t{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return {std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(),
            static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec)};
  }
  Seconds& operator+=(Seconds s) {
    wall += s.wall;
    cpu += s.cpu;
    return *this;
  }
  friend Seconds operator+(Seconds a, Seconds b) { return a += b; }
  friend Seconds operator-(Seconds a, Seconds b) { return {a.wall - b.wall, a.cpu - b.cpu}; }
  friend Seconds operator*(double k, Seconds s) { return {k * s.wall, k * s.cpu}; }
  friend Seconds operator/(Seconds s, double k) { return {s.wall / k, s.cpu / k}; }
};

// Returns the seconds of one call of `work`.
template <typename Work>
Seconds seconds_of(const Work& work) {
  const Seconds start = Seconds::now();
  work();
  return Seconds::now() - start;
}

}  // namespace fidelio
