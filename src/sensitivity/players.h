// Players divide measurements, as jobs, among ranks. A job is a series of measurements that starts from nothing but
// the job itself. Its results do not depend on which rank runs it or on what ran before, so any number of ranks gives
// the same bytes.
#pragma once
#include <functional>
#include <vector>

#include "ranks/ranks.h"
#include "sensitivity/meter.h"

namespace fidelio {

struct GameJob {
  int64_t place = 0;  // number of its first measurement among all measurements (see reserve())
  std::function<std::vector<MeterResult>(Game&)> play;
};

class Players {
 public:
  Players(Game& game, const Ranks& ranks) : game_(game), ranks_(ranks) {}
  // Reserves `count` numbers that nothing else has, and returns the first. Measurements are kept by number
  // (journal.h).
  int64_t reserve(int64_t count) {
    const int64_t first = next_;
    next_ += count;
    return first;
  }
  // Returns the results of every job, in the order of `jobs`, on every rank. Job j runs on rank j modulo size().
  std::vector<std::vector<MeterResult>> play(const std::vector<GameJob>& jobs);
  int size() const { return ranks_.size(); }

 private:
  Game& game_;
  const Ranks& ranks_;
  int64_t next_ = 0;
};

}  // namespace fidelio
