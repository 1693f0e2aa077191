#include "alloc/solve.h"

#include <algorithm>
#include <tuple>

#include "alloc/shared_books.h"

namespace fidelio {
namespace {

double cost_of(const Option& o, Cost cost) { return cost == Cost::kl ? o.kl : o.loss; }
double cost_of(const Plan& p, Cost cost) { return cost == Cost::kl ? p.kl : p.loss; }

// A partial plan holds the choice for the last group and the index of the partial plan of the groups before it.
struct Partial {
  int64_t bytes;
  double cost;
  int choice;
  int32_t before;
};

// Keeps the partial plans that no other one beats in both bytes and cost. Among equals the cheaper one stays, then
// the earlier one, so the result is unique.
void keep_undominated(std::vector<Partial>& all) {
  std::sort(all.begin(), all.end(), [](const Partial& a, const Partial& b) {
    if (a.bytes != b.bytes) return a.bytes < b.bytes;
    if (a.cost != b.cost) return a.cost < b.cost;
    return a.choice != b.choice ? a.choice < b.choice : a.before < b.before;
  });
  size_t kept = 0;
  for (const Partial& p : all)
    if (kept == 0 || p.cost < all[kept - 1].cost) all[kept++] = p;
  all.resize(kept);
}

// Solves for plans that all pay for the same shared codebooks.
std::vector<Plan> front_of(const SensitivityTable& table, Cost cost) {
  std::vector<std::vector<Partial>> stages = {{{table.fixed_bytes, 0.0, -1, -1}}};
  for (const Group& g : table.groups) {
    std::vector<Partial> next;
    next.reserve(stages.back().size() * g.options.size());
    for (size_t i = 0; i < stages.back().size(); ++i)
      for (size_t o = 0; o < g.options.size(); ++o)
        next.push_back({stages.back()[i].bytes + g.options[o].bytes,
                        stages.back()[i].cost + cost_of(g.options[o], cost), static_cast<int>(o),
                        static_cast<int32_t>(i)});
    keep_undominated(next);
    stages.push_back(std::move(next));
  }
  std::vector<Plan> front;
  for (const Partial& end : stages.back()) {
    std::vector<int> choice(table.groups.size());
    const Partial* p = &end;
    for (size_t g = table.groups.size(); g-- > 0; p = &stages[g][static_cast<size_t>(p->before)]) choice[g] = p->choice;
    front.push_back(evaluate(table, std::move(choice)));
  }
  return front;
}

}  // namespace

std::vector<Plan> pareto_front(const SensitivityTable& table, Cost cost) {
  const std::vector<PricedTable> sets = by_codebooks(table);
  std::vector<Plan> all;
  for (const PricedTable& set : sets)
    for (Plan& plan : front_of(set.table, cost)) {
      plan.choice = set.choice_of(plan.choice);
      all.push_back(std::move(plan));
    }
  if (sets.size() < 2) return all;
  std::sort(all.begin(), all.end(), [&](const Plan& a, const Plan& b) {
    return std::tuple(a.bytes, cost_of(a, cost), a.choice) < std::tuple(b.bytes, cost_of(b, cost), b.choice);
  });
  std::vector<Plan> front;
  for (Plan& plan : all)
    if (front.empty() || cost_of(plan, cost) < cost_of(front.back(), cost)) front.push_back(std::move(plan));
  return front;
}

std::optional<Plan> best_within_bytes(const std::vector<Plan>& front, int64_t bytes) {
  const auto after =
      std::upper_bound(front.begin(), front.end(), bytes, [](int64_t limit, const Plan& p) { return limit < p.bytes; });
  if (after == front.begin()) return std::nullopt;
  return *(after - 1);
}

}  // namespace fidelio
