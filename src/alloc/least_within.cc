// This file implements the part of solve.h that keeps one quantity least within limits on two others.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "alloc/shared_books.h"
#include "alloc/solve.h"
#include "core/error.h"

namespace fidelio {

double amount(const Plan& plan, Quantity quantity) {
  switch (quantity) {
    case Quantity::bytes:
      return static_cast<double>(plan.bytes);
    case Quantity::seconds:
      return plan.seconds;
    case Quantity::kl:
      return plan.kl;
    case Quantity::loss:
      break;
  }
  return plan.loss;
}

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double amount_of(const Option& o, Quantity quantity) {
  switch (quantity) {
    case Quantity::bytes:
      return static_cast<double>(o.bytes);
    case Quantity::seconds:
      return o.seconds;
    case Quantity::kl:
      return o.kl;
    case Quantity::loss:
      break;
  }
  return o.loss;
}

// An item is an option of a group, measured from the least amounts that the group can have. Weights are integers, so
// that a sum does not depend on the order of its terms.
struct Item {
  int option;
  double cost;
  int64_t weight[2];
  double above;  // a plan with this option lies at least so far above the bound
};

struct Problem {
  std::vector<std::vector<Item>> groups;
  int limits;
  int64_t limit[2] = {0, 0};  // the limits, less the least weights of all groups
  double largest = 0;         // the most by which a plan can cost more than the sum of the least costs
};

// Returns the bytes of the shared codebooks in a plan.
int64_t shared_in(const SensitivityTable& table, const Plan& plan) {
  int64_t bytes = plan.bytes - table.fixed_bytes;
  for (size_t g = 0; g < table.groups.size(); ++g)
    bytes -= table.groups[g].options[static_cast<size_t>(plan.choice[g])].bytes;
  return bytes;
}

// Returns the unit in which a weight is counted. For bytes it is one byte. Otherwise it is 2^-40 of the amount by
// which groups can differ, and weights are rounded down. A plan may therefore exceed a limit by as many units as
// there are groups, which is far less than the precision of any time or distance.
double unit_of(const SensitivityTable& table, Quantity quantity) {
  if (quantity == Quantity::bytes) return 1;
  double most = 0;
  for (const Group& g : table.groups) {
    double low = kInfinite, high = -kInfinite;
    for (const Option& o : g.options) {
      low = std::min(low, amount_of(o, quantity));
      high = std::max(high, amount_of(o, quantity));
    }
    most += high - low;
  }
  return most > 0 ? std::ldexp(most, -40) : 1;
}

// Builds the problem for plans that all pay `shared` bytes for codebooks.
Problem problem_of(const SensitivityTable& table, int64_t shared, Quantity least, std::span<const Limit> limits) {
  check(limits.size() <= 2, "least_within takes at most two limits, not {}", limits.size());
  Problem p{{}, static_cast<int>(limits.size())};
  const Plan nothing = evaluate(table, std::vector<int>(table.groups.size(), 0));
  double unit[2] = {1, 1}, left[2] = {0, 0};
  int64_t heaviest[2] = {0, 0};
  for (size_t k = 0; k < limits.size(); ++k) {
    unit[k] = unit_of(table, limits[k].quantity);
    left[k] = limits[k].most - amount(nothing, limits[k].quantity);
    for (const Group& g : table.groups) left[k] += amount_of(g.options.front(), limits[k].quantity);
    // The plan `nothing` pays for the codebooks of its own options, which may be fewer.
    if (limits[k].quantity == Quantity::bytes) left[k] -= static_cast<double>(shared - shared_in(table, nothing));
  }
  for (const Group& g : table.groups) {
    const auto smallest = [&](Quantity q) {
      double low = kInfinite;
      for (const Option& o : g.options) low = std::min(low, amount_of(o, q));
      return low;
    };
    const double cheapest = smallest(least);
    double lightest[2] = {0, 0}, dearest = 0;
    int64_t most[2] = {0, 0};
    for (size_t k = 0; k < limits.size(); ++k) left[k] -= lightest[k] = smallest(limits[k].quantity);
    std::vector<Item> items;
    for (size_t o = 0; o < g.options.size(); ++o) {
      Item item{static_cast<int>(o), amount_of(g.options[o], least) - cheapest, {0, 0}, 0};
      for (size_t k = 0; k < limits.size(); ++k) {
        item.weight[k] =
            static_cast<int64_t>(std::floor((amount_of(g.options[o], limits[k].quantity) - lightest[k]) / unit[k]));
        most[k] = std::max(most[k], item.weight[k]);
      }
      dearest = std::max(dearest, item.cost);
      items.push_back(item);
    }
    p.largest += dearest;
    for (int k = 0; k < 2; ++k) heaviest[k] += most[k];
    p.groups.push_back(std::move(items));
  }
  // A limit above the heaviest plan is no limit. Sums in another order may differ by a hundredth of a unit.
  for (size_t k = 0; k < limits.size(); ++k)
    p.limit[k] =
        static_cast<int64_t>(std::clamp(std::floor(left[k] / unit[k] + 0.01), -1.0, static_cast<double>(heaviest[k])));
  return p;
}

// This is the dual function. At given prices each group takes its cheapest option. The result is a lower bound for
// the cost of every plan, and it is concave in the prices.
struct Priced {
  double bound;
  double used[2];
};
Priced at_prices(const Problem& p, const double* price) {
  Priced all{0, {0, 0}};
  for (int k = 0; k < p.limits; ++k) all.bound -= price[k] * static_cast<double>(p.limit[k]);
  for (const std::vector<Item>& items : p.groups) {
    double low = kInfinite;
    const Item* taken = nullptr;
    for (const Item& i : items) {
      double sum = i.cost;
      for (int k = 0; k < p.limits; ++k) sum += price[k] * static_cast<double>(i.weight[k]);
      if (sum < low) low = sum, taken = &i;
    }
    all.bound += low;
    for (int k = 0; k < p.limits; ++k) all.used[k] += static_cast<double>(taken->weight[k]);
  }
  return all;
}

// Finds the least first price at which its limit holds, with the second price fixed. What is used falls as the price
// rises.
Priced settle_first(const Problem& p, double* price, double highest) {
  price[0] = 0;
  Priced best = at_prices(p, price);
  if (p.limits == 0 || best.used[0] <= static_cast<double>(p.limit[0])) return best;
  // The search covers this range of the price's logarithm; a price below it counts as zero.
  constexpr double kRange = 60;
  double low = std::log(highest) - kRange, high = std::log(highest);
  for (int step = 0; step < 48; ++step) {
    price[0] = std::exp((low + high) / 2);
    (at_prices(p, price).used[0] <= static_cast<double>(p.limit[0]) ? high : low) = std::log(price[0]);
  }
  price[0] = std::exp(high);
  return at_prices(p, price);
}

// Chooses prices that make the bound nearly as large as possible. Any other prices would be correct too, but more
// combinations would have to be tried.
double settle(const Problem& p, double* price) {
  // The smallest weight is one. At this price it costs more than all options together, so that only weights count.
  const double highest = 2 * std::max(p.largest, 1e-300);
  if (p.limits < 2) return settle_first(p, price, highest).bound;
  price[1] = 0;
  double best = settle_first(p, price, highest).bound, at[2] = {price[0], 0};
  // After maximising over the first price, the bound is concave in the second one. It has a single maximum, also over
  // the price's logarithm.
  const auto height = [&](double x) {
    price[1] = std::exp(x);
    const double bound = settle_first(p, price, highest).bound;
    if (bound > best) best = bound, at[0] = price[0], at[1] = price[1];
    return bound;
  };
  constexpr double kGolden = 0.6180339887498949;
  double low = std::log(highest) - 60, high = std::log(highest);
  double a = high - kGolden * (high - low), b = low + kGolden * (high - low), at_a = height(a), at_b = height(b);
  for (int step = 0; step < 36; ++step) {
    if (at_a >= at_b) {
      high = b, b = a, at_b = at_a, a = high - kGolden * (high - low), at_a = height(a);
    } else {
      low = a, a = b, at_a = at_b, b = low + kGolden * (high - low), at_b = height(b);
    }
  }
  std::copy_n(at, 2, price);
  return best;
}

// A partial plan holds the choices for all groups up to some group.
struct Begun {
  int64_t weight[2];
  double cost, above;
  int option;
  int32_t before;
};

// Drops the partial plans that another one beats in both weights and in cost.
void drop_beaten(std::vector<Begun>& all) {
  std::sort(all.begin(), all.end(), [](const Begun& a, const Begun& b) {
    if (a.weight[0] != b.weight[0]) return a.weight[0] < b.weight[0];
    if (a.weight[1] != b.weight[1]) return a.weight[1] < b.weight[1];
    if (a.cost != b.cost) return a.cost < b.cost;
    return a.option != b.option ? a.option < b.option : a.before < b.before;
  });
  // This maps the second weight to the least cost of all earlier plans with at most that weight. Costs fall along the
  // map.
  std::map<int64_t, double> stairs;
  std::erase_if(all, [&](const Begun& p) {
    auto next = stairs.upper_bound(p.weight[1]);
    if (next != stairs.begin() && std::prev(next)->second <= p.cost) return true;
    while (next != stairs.end() && next->second >= p.cost) next = stairs.erase(next);
    stairs[p.weight[1]] = p.cost;
    return false;
  });
}

// An Enumeration holds all plans that lie at most `reach` above the bound and that no other plan beats.
class Enumeration {
 public:
  Enumeration(const Problem& p, const double* price, double reach, size_t most)
      : p_(p), price_(price), reach_(reach), most_(most) {
    for (const std::vector<Item>& items : p.groups) {
      std::vector<Item> near;
      for (const Item& i : items)
        if (i.above <= reach) near.push_back(i);
      near_.push_back(std::move(near));
    }
    rest_.assign(near_.size() + 1, {{0, 0}, {0, 0}});
    for (size_t g = near_.size(); g-- > 0;)
      for (int k = 0; k < p.limits; ++k) {
        const auto [low, high] = std::minmax_element(
            near_[g].begin(), near_[g].end(), [k](const Item& a, const Item& b) { return a.weight[k] < b.weight[k]; });
        rest_[g].least[k] = rest_[g + 1].least[k] + low->weight[k];
        rest_[g].most[k] = rest_[g + 1].most[k] + high->weight[k];
      }
  }

  // Returns the cheapest of these plans, or nothing if there is none.
  std::vector<int> best() {
    std::vector<std::vector<Begun>> stages = {{{{0, 0}, 0, 0, -1, -1}}};
    for (size_t g = 0; g < near_.size(); ++g) stages.push_back(extend(stages.back(), g));
    if (stages.back().empty()) return {};
    const Begun* p = &*std::min_element(stages.back().begin(), stages.back().end(),
                                        [](const Begun& a, const Begun& b) { return a.cost < b.cost; });
    cost_ = p->cost;
    std::vector<int> choice(near_.size());
    for (size_t g = near_.size(); g-- > 0; p = &stages[g][static_cast<size_t>(p->before)]) choice[g] = p->option;
    return choice;
  }
  double cost() const { return cost_; }
  double proven() const { return proven_; }  // every plan that lies within this distance of the bound was considered
  bool cut() const { return proven_ < reach_; }

 private:
  struct Rest {
    int64_t least[2], most[2];
  };

  bool may_be(const Begun& p, const Rest& rest) const {
    double above = p.above;
    for (int k = 0; k < p_.limits; ++k) {
      if (p.weight[k] + rest.least[k] > p_.limit[k]) return false;
      above += price_[k] * static_cast<double>(std::max<int64_t>(p_.limit[k] - p.weight[k] - rest.most[k], 0));
    }
    return above <= reach_;
  }

  std::vector<Begun> extend(const std::vector<Begun>& stage, size_t g) {
    std::vector<Begun> next;
    for (size_t s = 0; s < stage.size(); ++s)
      for (const Item& i : near_[g]) {
        Begun p = stage[s];
        for (int k = 0; k < 2; ++k) p.weight[k] += i.weight[k];
        p.cost += i.cost, p.above += i.above, p.option = i.option, p.before = static_cast<int32_t>(s);
        if (may_be(p, rest_[g + 1])) next.push_back(p);
      }
    drop_beaten(next);
    if (next.size() > most_) {
      const auto last = next.begin() + static_cast<std::ptrdiff_t>(most_);
      std::nth_element(next.begin(), last, next.end(),
                       [](const Begun& a, const Begun& b) { return a.above < b.above; });
      proven_ = std::min(proven_, last->above);
      next.erase(last, next.end());
    }
    return next;
  }

  const Problem& p_;
  const double* price_;
  double reach_, cost_ = 0, proven_ = kInfinite;
  size_t most_;
  std::vector<std::vector<Item>> near_;
  std::vector<Rest> rest_;
};

// Solves for plans that all pay for the same shared codebooks.
std::optional<Solution> least_of(const SensitivityTable& table, int64_t shared, Quantity least,
                                 std::span<const Limit> limits, size_t most_partials) {
  Problem p = problem_of(table, shared, least, limits);
  for (int k = 0; k < p.limits; ++k)
    if (p.limit[k] < 0) return std::nullopt;
  double price[2] = {0, 0}, everything = 0, reach = kInfinite;
  const double bound = settle(p, price);
  for (std::vector<Item>& items : p.groups) {
    double low = kInfinite, high = 0;
    for (Item& i : items) {
      i.above = i.cost;
      for (int k = 0; k < p.limits; ++k) i.above += price[k] * static_cast<double>(i.weight[k]);
      low = std::min(low, i.above);
    }
    for (Item& i : items) {
      i.above -= low;
      high = std::max(high, i.above);
      if (i.above > 0) reach = std::min(reach, i.above);
    }
    everything += high;
  }
  for (int k = 0; k < p.limits; ++k) everything += price[k] * static_cast<double>(p.limit[k]);
  // Sums of this many numbers in another order differ by at most this much.
  const double rounding = 1e-14 * static_cast<double>(p.groups.size()) * (everything + std::abs(bound));
  for (reach = std::min(reach, everything);; reach *= 2) {
    Enumeration near(p, price, reach + rounding, most_partials);
    const std::vector<int> choice = near.best();
    const bool found = !choice.empty() || p.groups.empty();
    if (found && (near.cut() || near.cost() <= bound + reach + rounding)) {
      Plan plan = evaluate(table, choice);
      const double has = amount(plan, least), proven = has - near.cost() + bound + near.proven();
      return Solution{std::move(plan), std::min(has, near.cut() ? proven : has)};
    }
    if (!found && near.cut()) most_partials *= 4;
    if (!found && !near.cut() && reach >= everything) return std::nullopt;
  }
}

}  // namespace

std::optional<Solution> least_within(const SensitivityTable& table, Quantity least, std::span<const Limit> limits,
                                     size_t most_partials) {
  std::optional<Solution> best;
  double bound = kInfinite;
  for (const PricedTable& set : by_codebooks(table)) {
    std::optional<Solution> found = least_of(set.table, set.bytes, least, limits, most_partials);
    if (!found) continue;
    bound = std::min(bound, found->bound);
    found->plan.choice = set.choice_of(found->plan.choice);
    if (!best || amount(found->plan, least) < amount(best->plan, least)) best = std::move(found);
  }
  if (best) best->bound = bound;
  return best;
}

FrontWithin front_within(const SensitivityTable& table, Cost cost, double seconds, double resolution) {
  const Quantity least = cost == Cost::kl ? Quantity::kl : Quantity::loss;
  const Limit time{Quantity::seconds, seconds};
  FrontWithin front;
  const std::optional<Solution> smallest = least_within(table, Quantity::bytes, std::span(&time, 1));
  if (!smallest) return front;
  std::optional<Solution> next = least_within(table, least, std::span(&time, 1));
  while (next) {
    const double has = amount(next->plan, least);
    if (next->bound < has) front.gap = std::max(front.gap, has / std::max(next->bound, 1e-300) - 1);
    const auto bytes = static_cast<double>(next->plan.bytes);
    // The smallest of plans of equal cost is kept: a plan that is found later has fewer bytes and replaces the last
    // one.
    if (!front.plans.empty() && amount(front.plans.back(), least) >= has) front.plans.pop_back();
    front.plans.push_back(std::move(next->plan));
    const double most = std::min(bytes - 1, std::floor(bytes * (1 - resolution)));
    if (bytes <= smallest->bound) break;
    const Limit both[] = {{Quantity::bytes, std::max(most, smallest->bound)}, time};
    next = least_within(table, least, both);
  }
  std::reverse(front.plans.begin(), front.plans.end());
  return front;
}

}  // namespace fidelio
