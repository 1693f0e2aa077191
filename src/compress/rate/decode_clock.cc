#include "compress/rate/decode_clock.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "runtime/page_table.h"
#include "step/own_slot.h"

namespace fidelio {
namespace {

constexpr double kBlockSeconds = 0.03;
constexpr int kLeastSteps = 2, kMostSteps = 64;  // steps of a block
constexpr double kSlow = 0.1;                    // seconds of a step that fewer blocks are enough for
constexpr int kBlocks = 8, kSlowBlocks = 3;      // so many blocks must count
constexpr double kCalm = 1.15;                   // times the fastest block: slower ones do not count
constexpr double kLongest = 4;                   // After so many seconds no further block is timed.

double quantile(std::vector<double> values, double share) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// TimedBlocks holds the times of one state, or of two states that alternate, block by block.
class TimedBlocks {
 public:
  // `other` is the shortest time that is known of a block of the second state.
  explicit TimedBlocks(double other = std::numeric_limits<double>::infinity()) : known_(other) {}
  void add(double one, double other) { all_.push_back({one, other}); }
  bool enough() const {
    const int wanted = all_.back().second < kSlow ? kBlocks : kSlowBlocks;
    return static_cast<int>(calm().size()) >= wanted || seconds_since_start() > kLongest;
  }
  // Returns medians over the blocks that count.
  std::pair<double, double> times() const {
    std::vector<double> one, other;
    for (const auto& [first, second] : calm()) one.push_back(first), other.push_back(second);
    return {quantile(one, 0.5), quantile(other, 0.5)};
  }

 private:
  std::vector<std::pair<double, double>> calm() const {
    double fastest[2] = {all_.front().first, std::min(all_.front().second, known_)};
    for (const auto& [one, other] : all_)
      fastest[0] = std::min(fastest[0], one), fastest[1] = std::min(fastest[1], other);
    std::vector<std::pair<double, double>> kept;
    for (const auto& [one, other] : all_) {
      // Each state is judged by itself: a block of one may be disturbed and that of the other not.
      if (one <= kCalm * fastest[0] && other <= kCalm * fastest[1]) kept.emplace_back(one, other);
    }
    if (!kept.empty()) return kept;
    // None is as fast as is known, so the nearest one is taken.
    kept.push_back(
        *std::min_element(all_.begin(), all_.end(), [](const auto& a, const auto& b) { return a.second < b.second; }));
    return kept;
  }
  double seconds_since_start() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  double known_;
  std::vector<std::pair<double, double>> all_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

double by_the_clock(Runner& runner, const Batch& batch, Activations mode) {
  const ChoiceRule best[] = {{}};
  Choice chosen[1];
  const auto start = std::chrono::steady_clock::now();
  runner.step_and_choose(batch, mode, best, chosen);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

DecodeClock::DecodeClock(Runner& runner, int64_t context, StepTimer timer)
    : runner_(runner), context_(context), timer_(timer ? std::move(timer) : by_the_clock) {
  PageTable table(runner.cache_pages());
  check(table.grow(0, context + 1), "a cache of {} pages has no room for {} tokens", runner.cache_pages(), context + 1);
  pages_ = table.pages(0);
  std::vector<int32_t> ids(static_cast<size_t>(context));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(runner.config().v));
  runner.reserve_states(1);
  const StateShape& state = runner.program().state;
  for (int64_t first = 0, rows = 0; first < context; first += rows) {
    rows = rows_of_prompt(state, first, context - first, runner.options().max_rows);
    Batch batch;
    batch.append(std::span(ids).subspan(static_cast<size_t>(first), static_cast<size_t>(rows)), first, pages_, 0,
                 RowKind::prompt);
    continue_in_slot(state, batch, 0);
    runner.step(batch, runner.options().mode);
  }
}

double DecodeClock::step() {
  const int32_t id = 1;
  Batch batch;
  batch.append({&id, 1}, context_, pages_, 1, RowKind::output);
  continue_in_slot(runner_.program().state, batch, 0);
  return timer_(runner_, batch, runner_.options().mode);
}

// A GPU runs the first step of new weights directly, records the second one and replays it for the others.
double DecodeClock::block() {
  double about = 0;
  for (int i = 0; i < (runner_.gpu() ? 2 : 1); ++i) about = step();
  const int steps = std::clamp(static_cast<int>(kBlockSeconds / std::max(about, 1e-9)), kLeastSteps, kMostSteps);
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) times.push_back(step());
  return quantile(std::move(times), 0.1);
}

double DecodeClock::seconds() {
  TimedBlocks blocks;
  do {
    const double time = block();
    blocks.add(time, time);
  } while (!blocks.enough());
  return blocks.times().first;
}

DecodeClock::Difference DecodeClock::difference(const std::function<void()>& put_one,
                                                const std::function<void()>& put_other) {
  TimedBlocks blocks(fastest_);
  do {
    put_one();
    const double one = block();
    put_other();
    const double other = block();
    fastest_ = std::min(fastest_, other);
    blocks.add(one, other);
  } while (!blocks.enough());
  const auto [one, other] = blocks.times();
  return {one - other, other};
}

}  // namespace fidelio
