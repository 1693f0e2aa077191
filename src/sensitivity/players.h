// Measurements as jobs that ranks share out. A job is a run of measurements that starts from nothing but the job
// itself; what it finds does not depend on who plays it or on what was played before, so any number of ranks gives the
// same bytes.
#pragma once
#include <functional>
#include <vector>

#include "ranks/ranks.h"
#include "sensitivity/meter.h"

namespace fidelio {

struct GameJob {
  int64_t place = 0;  // of its first measurement, in the numbering of all measurements (reserve())
  std::function<std::vector<MeterResult>(Game&)> play;
};

class Players {
 public:
  Players(Game& game, const Ranks& ranks) : game_(game), ranks_(ranks) {}
  // The first of `count` numbers that nothing else has: measurements are kept by number (journal.h).
  int64_t reserve(int64_t count) {
    const int64_t first = next_;
    next_ += count;
    return first;
  }
  // The results of every job, in the order of `jobs`, on every rank. Job j is played by rank j mod size().
  std::vector<std::vector<MeterResult>> play(const std::vector<GameJob>& jobs);
  int size() const { return ranks_.size(); }

 private:
  Game& game_;
  const Ranks& ranks_;
  int64_t next_ = 0;
};

}  // namespace fidelio
