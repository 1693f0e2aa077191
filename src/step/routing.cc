#include "step/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace fidelio {
namespace {

// Chosen holds the experts of one row, ascending, and their shares.
struct Chosen {
  std::vector<int32_t> experts;
  std::vector<double> shares;
};

// Puts numbers in the order in which they are chosen: the largest first, of equal ones the first, and NaN last.
struct Larger {
  std::span<const double> values;
  bool operator()(int32_t a, int32_t b) const {
    const double x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? a < b : std::isnan(y);
    return x != y ? x > y : a < b;
  }
};

// Puts the `count` first in the order before the others, which are in no order.
void put_first(std::vector<int32_t>& numbers, int count, std::span<const double> values) {
  std::partial_sort(numbers.begin(), numbers.begin() + count, numbers.end(), Larger{values});
}

// Room is what the choice of a row needs, kept from row to row.
struct Room {
  std::vector<int32_t> order, groups, of_group;
  std::vector<double> by, sums;
};

// Scores are those of a row's experts, but for a common divisor: the sigmoids of their logits, or the exponentials.
class Scores {
 public:
  Scores(std::span<const float> logits, Scoring scoring) : logits_(logits), sigmoid_(scoring == Scoring::sigmoid) {
    for (const float x : logits)
      if (std::isnan(largest_) || x > largest_) largest_ = x;
  }
  double operator[](size_t expert) const {
    const double logit = static_cast<double>(logits_[expert]);
    return sigmoid_ ? 1 / (1 + std::exp(-logit)) : std::exp(logit - static_cast<double>(largest_));
  }
  // Returns the divisor that the scores of all experts have.
  double divisor() const {
    if (sigmoid_) return 1;
    double sum = 0;
    for (size_t expert = 0; expert < logits_.size(); ++expert) sum += (*this)[expert];
    return sum;
  }

 private:
  std::span<const float> logits_;
  bool sigmoid_;
  float largest_ = std::numeric_limits<float>::quiet_NaN();
};

// Keeps the experts of the best groups of a row in `order`. A group's score is the sum of its two best.
void keep_groups(const RoutingRule& rule, Room& room) {
  const int each = rule.experts / rule.groups;
  room.sums.clear();
  for (int group = 0; group < rule.groups; ++group) {
    room.of_group.resize(static_cast<size_t>(each));
    std::iota(room.of_group.begin(), room.of_group.end(), group * each);
    put_first(room.of_group, 2, room.by);
    room.sums.push_back(room.by[static_cast<size_t>(room.of_group[0])] +
                        room.by[static_cast<size_t>(room.of_group[1])]);
  }
  room.groups.resize(static_cast<size_t>(rule.groups));
  std::iota(room.groups.begin(), room.groups.end(), 0);
  put_first(room.groups, rule.groups_per_row, room.sums);
  room.order.clear();
  for (int i = 0; i < rule.groups_per_row; ++i)
    for (int expert = 0; expert < each; ++expert)
      room.order.push_back(room.groups[static_cast<size_t>(i)] * each + expert);
}

void choose(std::span<const float> logits, const RoutingRule& rule, std::span<const float> adjustments, Room& room,
            Chosen& chosen) {
  const auto E = static_cast<size_t>(rule.experts);
  const Scores scores(logits, rule.scoring);
  const double divisor = rule.by_score() || !rule.renormalised ? scores.divisor() : 1;
  room.by.assign(logits.begin(), logits.end());
  for (size_t i = 0; i < E && rule.by_score(); ++i)
    room.by[i] = scores[i] / divisor + (rule.corrected ? static_cast<double>(adjustments[i]) : 0);
  room.order.resize(E);
  std::iota(room.order.begin(), room.order.end(), 0);
  if (rule.groups > 1) keep_groups(rule, room);
  put_first(room.order, rule.per_row, room.by);
  chosen.experts.assign(room.order.begin(), room.order.begin() + rule.per_row);
  std::ranges::sort(chosen.experts);
  double sum = divisor;
  if (rule.renormalised) {
    sum = rule.scoring == Scoring::sigmoid ? kLeastScores : 0;
    for (const int32_t expert : chosen.experts) sum += scores[static_cast<size_t>(expert)];
  }
  chosen.shares.clear();
  for (const int32_t expert : chosen.experts) {
    const auto at = static_cast<size_t>(expert);
    const double scale = rule.scaled ? static_cast<double>(adjustments[E + at]) : 1;
    chosen.shares.push_back(scores[at] / sum * rule.factor * scale);
  }
}

}  // namespace

void route(std::span<const float> logits, const RoutingRule& rule, std::span<const float> adjustments, Routes& routes) {
  const auto E = static_cast<size_t>(rule.experts), n = logits.size() / E;
  thread_local Room room;
  thread_local Chosen chosen;
  thread_local std::vector<int32_t> experts;  // (n, k)
  thread_local std::vector<float> shares;     // (n, k)
  experts.clear(), shares.clear();
  for (size_t row = 0; row < n; ++row) {
    choose(logits.subspan(row * E, E), rule, adjustments, room, chosen);
    experts.insert(experts.end(), chosen.experts.begin(), chosen.experts.end());
    for (const double share : chosen.shares) shares.push_back(static_cast<float>(share));
  }
  deal(experts, shares, rule, routes);
}

void deal(std::span<const int32_t> experts, std::span<const float> shares, const RoutingRule& rule, Routes& routes) {
  const size_t all = experts.size(), k = static_cast<size_t>(rule.per_row);
  thread_local std::vector<int64_t> next;  // the next slot of each expert
  next.assign(static_cast<size_t>(rule.experts), 0);
  for (const int32_t expert : experts) ++next[static_cast<size_t>(expert)];
  routes.per_row = rule.per_row;
  routes.groups.clear();
  int64_t slots = 0;
  for (size_t expert = 0; expert < next.size(); ++expert) {
    const int64_t count = next[expert];
    next[expert] = slots;
    if (count > 0) routes.groups.push_back({static_cast<int>(expert), slots, count});
    slots += count;
  }
  routes.rows.resize(all), routes.shares.resize(all), routes.slots.resize(all);
  for (size_t i = 0; i < all; ++i) {
    const int64_t slot = next[static_cast<size_t>(experts[i])]++;
    routes.rows[static_cast<size_t>(slot)] = static_cast<int32_t>(i / k);
    routes.shares[static_cast<size_t>(slot)] = shares[i];
    routes.slots[i] = static_cast<int32_t>(slot);
  }
}

Routes alone(std::span<const int32_t> rows) {
  Routes routes;
  routes.per_row = 1;
  routes.rows.assign(rows.begin(), rows.end());
  return routes;
}

Routes as_they_are(int64_t rows) {
  Routes routes;
  routes.per_row = 1;
  routes.rows.resize(static_cast<size_t>(rows));
  std::iota(routes.rows.begin(), routes.rows.end(), 0);
  return routes;
}

}  // namespace fidelio
