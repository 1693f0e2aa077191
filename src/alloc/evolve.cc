#include "alloc/evolve.h"

#include <algorithm>
#include <limits>
#include <set>

#include "core/error.h"
#include "core/rng.h"

namespace fidelio {
namespace {

// For each group, this lists its options by ascending bytes: these are the levels that mutations switch between.
std::vector<std::vector<int>> levels_of(const SensitivityTable& table) {
  std::vector<std::vector<int>> levels;
  for (const Group& g : table.groups) {
    std::vector<int> order(g.options.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return g.options[static_cast<size_t>(a)].bytes < g.options[static_cast<size_t>(b)].bytes;
    });
    levels.push_back(std::move(order));
  }
  return levels;
}

class Mutator {
 public:
  Mutator(const SensitivityTable& table, uint64_t seed) : table_(table), levels_(levels_of(table)), rng_(seed) {}

  // A level-switch mutation moves a few groups one level down and fewer groups one level up, so that bytes tend to
  // fall.
  Plan offspring(const Plan& parent) {
    std::vector<int> choice = parent.choice;
    const auto few = [&] { return std::min(rng_.below(3), rng_.below(3)) + 1; };
    const uint64_t down = few(), up = rng_.below(2) * few();
    for (uint64_t i = 0; i < down; ++i) shift(choice, rng_.below(choice.size()), -1);
    for (uint64_t i = 0; i < up; ++i) shift(choice, rng_.below(choice.size()), +1);
    return evaluate(table_, std::move(choice));
  }

  // A curation step swaps the formats of two groups of equal size, so that the plan keeps its number of bytes.
  Plan swapped(const Plan& parent) {
    for (int attempt = 0; attempt < 64; ++attempt) {
      const size_t a = rng_.below(parent.choice.size()), b = rng_.below(parent.choice.size());
      if (table_.groups[a].parameters != table_.groups[b].parameters || parent.choice[a] == parent.choice[b]) continue;
      std::vector<int> choice = parent.choice;
      std::swap(choice[a], choice[b]);
      Plan plan = evaluate(table_, std::move(choice));
      if (plan.bytes == parent.bytes) return plan;
    }
    return parent;
  }

 private:
  void shift(std::vector<int>& choice, size_t group, int step) {
    const std::vector<int>& order = levels_[group];
    const auto at = std::find(order.begin(), order.end(), choice[group]) - order.begin();
    const auto to = std::clamp<int64_t>(at + step, 0, static_cast<int64_t>(order.size()) - 1);
    choice[group] = order[static_cast<size_t>(to)];
  }

  const SensitivityTable& table_;
  std::vector<std::vector<int>> levels_;
  Rng rng_;
};

// This is equation 9, and lower is better. The byte saving stands for the reduction of the bit width. A KL above the
// limit is penalised by its excess as a share of the limit. The paper's own term, gamma (KL - tau), would reward the
// excess wherever KL is below 1 / gamma.
double fitness(const Plan& child, const Plan& parent, double kl, const EvolveOptions& o) {
  const double saved = static_cast<double>(parent.bytes - child.bytes) / static_cast<double>(parent.bytes);
  if (saved <= 0) return std::numeric_limits<double>::max() / 2;
  return kl / saved * (kl <= o.kl_limit ? 1.0 : 1 + o.penalty * (kl / o.kl_limit - 1));
}

}  // namespace

Evolution evolve(const SensitivityTable& table, const Plan& start, const EvolveOptions& o, const MeasureKl& measure) {
  check(!o.stages.empty() && o.stages.back().second == 1.0, "the last selection stage must measure on all of the text");
  Mutator mutate(table, o.seed);
  Evolution result;
  const auto measured = [&](const Plan& plan, double share) {
    ++result.measurements;
    return measure(plan, share);
  };
  const auto follow = [&](const Plan& plan, double kl) {
    result.best = plan;
    result.best.kl = result.kl = kl;
    result.path.push_back(result.best);
  };
  follow(start, measured(start, 1.0));
  for (int stall = 0; result.generations < o.generations; ++result.generations) {
    struct Child {
      Plan plan;
      double kl = 0;
    };
    std::vector<Child> pool;
    std::set<std::vector<int>> seen = {result.best.choice};
    for (int attempt = 0; attempt < 16 * o.offspring && static_cast<int>(pool.size()) < o.offspring; ++attempt) {
      Plan plan = mutate.offspring(result.best);
      if (plan.bytes < result.best.bytes && seen.insert(plan.choice).second) pool.push_back({std::move(plan)});
    }
    for (auto [survivors, share] : o.stages) {
      for (Child& child : pool) child.kl = measured(child.plan, share);
      std::stable_sort(pool.begin(), pool.end(), [&](const Child& a, const Child& b) {
        return fitness(a.plan, result.best, a.kl, o) < fitness(b.plan, result.best, b.kl, o);
      });
      pool.resize(std::min(pool.size(), static_cast<size_t>(survivors)));
    }
    if (!pool.empty() && pool.front().kl <= o.kl_limit) {
      follow(pool.front().plan, pool.front().kl);
      stall = 0;
    } else if (++stall >= o.stall_limit) {
      const size_t before = result.path.size();
      for (int i = 0; i < o.offspring; ++i) {
        const Plan swapped = mutate.swapped(result.best);
        if (swapped.choice == result.best.choice) break;
        const double kl = measured(swapped, 1.0);
        if (kl < result.kl) follow(swapped, kl);
      }
      if (result.path.size() == before) break;
      stall = 0;
    }
  }
  return result;
}

}  // namespace fidelio
