#include "engine/drafts/controller.h"

#include <algorithm>
#include <cmath>

namespace fidelio {

// --- The next functions learn costs. ---
constexpr int64_t kNewSteps = 2;  // so many first steps with a new number of rows are not counted

void StepCost::Median::add(double of_step, int64_t now) {
  added = now;
  if (++steps <= kNewSteps) return;
  const int64_t counted = steps - kNewSteps;
  last[static_cast<size_t>(counted - 1) % last.size()] = of_step;
  std::array<double, 9> sorted = last;
  const auto count = static_cast<std::ptrdiff_t>(std::min<int64_t>(counted, static_cast<int64_t>(last.size())));
  std::nth_element(sorted.begin(), sorted.begin() + count / 2, sorted.begin() + count);
  seconds = sorted[static_cast<size_t>(count / 2)];
}

void StepCost::add(double rows, double seconds) {
  constexpr double kKeep = 0.993;  // halves a weight in 100 steps
  // A step that takes more than this times the median was held up and says nothing about rows.
  constexpr double kHeldUp = 1.25;
  ++added_;
  if (rows <= kMostRows) by_rows_[static_cast<size_t>(rows)].add(seconds, added_);
  if (rows <= kMostRows && (steps(rows) <= kNewSteps || (seen(rows) && seconds > kHeldUp * of(rows)))) return;
  for (double* sum : {&weight_, &x_, &xx_, &y_, &xy_}) *sum *= kKeep;
  weight_ += 1, x_ += rows, xx_ += rows * rows, y_ += seconds, xy_ += rows * seconds;
}

bool StepCost::seen(double rows) const {
  constexpr int64_t kEnough = kNewSteps + 3;  // one of them may have been held up
  // A number of rows that was found expensive is not tried again, so the finding is believed only for this many
  // steps.
  constexpr int64_t kBelieved = 1000;
  return steps(rows) >= kEnough && added_ - by_rows_[static_cast<size_t>(rows)].added <= kBelieved;
}

int StepCost::seen_from(double rows) const {
  for (int i = static_cast<int>(rows); i <= std::min<double>(rows * 1.25, kMostRows); ++i)
    if (seen(i)) return i;
  return -1;
}

double StepCost::nearby(double rows) const {
  const int from = seen_from(rows);
  return from < 0 ? of(rows) : std::min(of(rows), by_rows_[static_cast<size_t>(from)].seconds);
}

// Steps with a number of rows that was not seen take no less than steps that were seen with fewer rows. So a jump in
// the cost is known once its first step was seen.
double StepCost::of(double rows) const {
  if (seen(rows)) return by_rows_[static_cast<size_t>(rows)].seconds;
  double most = fixed() + per_row() * rows;
  for (int i = 0; i <= kMostRows && i < rows; ++i)
    if (seen(i)) most = std::max(most, by_rows_[static_cast<size_t>(i)].seconds);
  return most;
}

// If all steps had about the same number of rows, no slope can be fitted. A row is then taken to cost a twentieth of
// a step.
double StepCost::per_row() const {
  if (weight_ <= 0) return 0;
  const double mean = x_ / weight_, variance = xx_ / weight_ - mean * mean, seconds = y_ / weight_;
  if (variance < 0.05) return seconds / (20 + mean - 1);
  return std::clamp((xy_ / weight_ - mean * seconds) / variance, 0.0, seconds / std::max(mean, 1.0));
}

double StepCost::fixed() const { return weight_ <= 0 ? 0 : std::max(0.0, (y_ - per_row() * x_) / weight_); }

// --- The next functions learn how often drafts are accepted. ---
// The table begins as if four drafts of each bin had been seen and accepted as often as they were sure.
AcceptanceTable::AcceptanceTable() {
  double low = 0;
  for (size_t i = 0; i < kUpTo.size(); ++i) {
    made_[i] = 4;
    accepted_[i] = 4 * (low + std::min(kUpTo[i], 1.0)) / 2;
    low = kUpTo[i];
  }
}

size_t AcceptanceTable::bin_of(double sureness) {
  return static_cast<size_t>(std::find_if(kUpTo.begin(), kUpTo.end() - 1, [&](double up) { return sureness <= up; }) -
                             kUpTo.begin());
}

double AcceptanceTable::rate(double sureness) const {
  const size_t i = bin_of(sureness);
  return accepted_[i] / made_[i];
}

void AcceptanceTable::add(double sureness, bool accepted) {
  const size_t i = bin_of(sureness);
  constexpr double kKeep = 0.997;
  made_[i] = kKeep * made_[i] + 1;
  accepted_[i] = kKeep * accepted_[i] + (accepted ? 1 : 0);
  all_made_ = kKeep * all_made_ + 1;
  all_accepted_ = kKeep * all_accepted_ + (accepted ? 1 : 0);
}

// --- The next functions decide how far to draft. ---
void Controller::begin_cycle(int64_t outputs, int64_t running) {
  outputs_ = outputs;
  drafted_ = 0;
  seconds_ = 0;
  drafting_ = trial_ = false;
  ++waited_;
  const auto n = static_cast<double>(std::max(outputs, running));
  const double speedup = steps_ > 0 ? tokens_ / steps_ : 1;
  rate_ = verify_.known() ? n / verify_.nearby(n) * std::max(1.0, speedup) : 0;
}

bool Controller::continues(std::span<Output> outputs) {
  if (!options_.adapt) return true;
  if (measures_plain()) return false;
  const double row = rate_ * (draft_row() + verify_.per_row());
  double yield = 0, rows = 0;
  for (const Output& o : outputs) {
    const double next = o.reached * table(Source::draft, o.sampled).mean();
    if (o.drafts && next > row) yield += next, rows += 1;
  }
  const auto before = static_cast<double>(outputs_ + drafted_);
  const double verified =
      verify_.seen(before) ? verify_.of(before + rows) - verify_.of(before) : rows * verify_.per_row();
  if (account_ >= 0 && yield > rate_ * (draft_fixed() + rows * draft_row() + verified)) {
    for (Output& o : outputs) o.drafts = o.drafts && o.reached * table(Source::draft, o.sampled).mean() > row;
    return drafting_ = true;
  }
  if (drafting_ || trial_ || waited_ < interval_) return false;
  interval_ = std::min<int64_t>(interval_ * 2, 128);
  return trial_ = true;
}

int64_t Controller::worth_verifying(std::span<const double> reached) const {
  const auto count = static_cast<int64_t>(reached.size());
  if (!options_.adapt || !verify_.known() || trial_) return count;
  const double row = rate_ * verify_.per_row();
  return std::find_if(reached.begin(), reached.end(), [&](double p) { return p <= row; }) - reached.begin();
}

int64_t Controller::worth_together(std::span<const double> reached) {
  constexpr int64_t kBetweenTrials = 64;
  const auto all = static_cast<int64_t>(reached.size());
  if (!options_.adapt || all == 0 || trial_) return all;
  if (holds_back()) return 0;
  // If steps with some number of rows have begun to be measured, they are continued before another new number is
  // tried.
  const bool may_be_new = new_account_ >= 0;
  bool begun = false;
  const auto plain = static_cast<double>(outputs_);
  const double plain_cost = verify_.nearby(plain);
  double expected = 0, most = 0;
  int64_t best = 0;
  for (int64_t drafts = 1; drafts <= all; ++drafts) {
    expected += reached[static_cast<size_t>(drafts - 1)];
    const double rows = plain + static_cast<double>(drafts);
    const int64_t steps = verify_.steps(rows);
    begun = begun || (steps > 0 && steps < kNewSteps);
    if (steps < kNewSteps && !(may_be_new && (steps > 0 || (drafts == all && !begun)))) continue;
    const double gain = expected - rate_ * (verify_.of(rows) - plain_cost);
    if (gain > most) most = gain, best = drafts;
  }
  return best == 0 && may_be_new && ++refused_ % kBetweenTrials == 0 ? all : best;
}

bool Controller::prefers_lookup(std::span<const double> reached) const {
  if (!options_.adapt || options_.draft == nullptr) return true;
  double gain = 0;
  for (double p : reached) gain += p - rate_ * verify_.per_row();
  return gain > std::max(0.0, gain_);
}

void Controller::drafted(int64_t rows, double seconds) {
  draft_.add(static_cast<double>(rows), seconds);
  drafted_ += rows;
  seconds_ += seconds;
}

// If a prompt shared the step, its time says nothing about outputs, and the cycle is not counted.
void Controller::verified(int64_t rows, double seconds, bool only_outputs) {
  constexpr int64_t kTimed = 3, kRarest = 64;
  verified_drafts_ = rows > outputs_;
  new_rows_ = verify_.steps(static_cast<double>(rows)) < kNewSteps;
  plain_in_a_row_ = is_plain() && only_outputs ? plain_in_a_row_ + 1 : 0;
  if (!is_plain()) ++cycles_since_plain_;
  if (plain_in_a_row_ >= kPlainStepsToSettle + kTimed) {
    if (cycles_since_plain_ >= plain_interval_) plain_interval_ = std::min(2 * plain_interval_, kRarest);
    cycles_since_plain_ = 0;
  }
  if (only_outputs && (!is_plain() || plain_in_a_row_ > kPlainStepsToSettle))
    verify_.add(static_cast<double>(rows), seconds);
  seconds_ = only_outputs ? seconds_ + seconds : 0;
}

void Controller::judged(Source source, bool sampled, double sureness, bool accepted) {
  tables_[static_cast<size_t>(source)][sampled ? 1 : 0].add(sureness, accepted);
}

void Controller::end_cycle(int64_t tokens) {
  if (drafting_ || trial_) waited_ = 0;
  if (drafting_) interval_ = 8;
  if (seconds_ <= 0 || outputs_ == 0 || !verify_.known()) return;
  constexpr double kKeep = 0.97;
  const auto n = static_cast<double>(outputs_), plain = verify_.nearby(n), each = static_cast<double>(tokens) / n;
  constexpr double kEachCycle = 0.005, kMostLost = 8, kMostHeld = 256;
  const double gained = is_plain() ? 0 : std::max(each - seconds_ / plain, -kMostLost), most = kMostHeld / std::sqrt(n);
  account_ = std::min(account_ + kEachCycle + (new_rows_ ? 0 : gained), most);
  new_account_ = std::min(new_account_ + kEachCycle + gained, most);
  tokens_ = kKeep * tokens_ + each;
  steps_ = kKeep * steps_ + seconds_ / plain;
  if (drafting_) gain_ = 0.95 * gain_ + 0.05 * (each - 1 - rate_ / n * (seconds_ - plain));
}

}  // namespace fidelio
