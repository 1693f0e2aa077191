#include "alloc/solve.h"

#include <coin/Cbc_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/error.h"

namespace fidelio {
namespace {

double cost_of(const Option& o, Cost cost) { return cost == Cost::kl ? o.kl : o.loss; }
double cost_of(const Plan& p, Cost cost) { return cost == Cost::kl ? p.kl : p.loss; }

// A partial plan: the choice for the last group, and the partial plan of the groups before it.
struct Partial {
  int64_t bytes;
  double cost;
  int choice;
  int32_t before;
};

// Keeps what nothing else beats in bytes and cost. Equal bytes: the cheaper, then the earlier, so the result is unique.
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

}  // namespace

std::vector<Plan> pareto_front(const SensitivityTable& table, Cost cost) {
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

std::optional<Plan> best_within_bytes(const std::vector<Plan>& front, int64_t bytes) {
  const auto after =
      std::upper_bound(front.begin(), front.end(), bytes, [](int64_t limit, const Plan& p) { return limit < p.bytes; });
  if (after == front.begin()) return std::nullopt;
  return *(after - 1);
}

std::optional<Plan> smallest_within_cost(const std::vector<Plan>& front, Cost cost, double limit) {
  for (const Plan& p : front)
    if (cost_of(p, cost) <= limit) return p;
  return std::nullopt;
}

std::optional<Plan> solve_ilp(const SensitivityTable& table, Cost cost, int64_t bytes,
                              const std::vector<SideConstraint>& sides) {
  // One binary variable per (group, option); rows: one choice per group, then the byte budget, then the side
  // constraints.
  const int groups = static_cast<int>(table.groups.size());
  const int rows = groups + 1 + static_cast<int>(sides.size());
  int64_t unit = 0;
  double largest = 0;
  for (const Group& g : table.groups)
    for (const Option& o : g.options) {
      unit = std::gcd(unit, o.bytes);
      largest = std::max(largest, std::abs(cost_of(o, cost)));
    }
  unit = std::max<int64_t>(unit, 1);
  if (largest == 0) largest = 1;

  std::vector<int> start = {0}, index;
  std::vector<double> value, lower, upper, objective, row_lower(static_cast<size_t>(rows), -1e30),
      row_upper(static_cast<size_t>(rows));
  for (int g = 0; g < groups; ++g) {
    row_lower[static_cast<size_t>(g)] = row_upper[static_cast<size_t>(g)] = 1;
    const Group& group = table.groups[static_cast<size_t>(g)];
    for (size_t o = 0; o < group.options.size(); ++o) {
      index.insert(index.end(), {g, groups});
      value.insert(value.end(), {1.0, static_cast<double>(group.options[o].bytes / unit)});
      for (size_t s = 0; s < sides.size(); ++s) {
        index.push_back(groups + 1 + static_cast<int>(s));
        value.push_back(sides[s].weight.at(static_cast<size_t>(g)).at(o));
      }
      start.push_back(static_cast<int>(index.size()));
      lower.push_back(0);
      upper.push_back(1);
      objective.push_back(cost_of(group.options[o], cost) / largest);
    }
  }
  row_upper[static_cast<size_t>(groups)] =
      std::floor(static_cast<double>(bytes - table.fixed_bytes) / static_cast<double>(unit));
  for (size_t s = 0; s < sides.size(); ++s) row_upper[static_cast<size_t>(groups) + 1 + s] = sides[s].limit;

  const std::unique_ptr<Cbc_Model, void (*)(Cbc_Model*)> model(Cbc_newModel(), &Cbc_deleteModel);
  Cbc_setParameter(model.get(), "logLevel", "0");
  Cbc_setParameter(model.get(), "ratioGap", "0");
  Cbc_setParameter(model.get(), "allowableGap", "0");
  Cbc_loadProblem(model.get(), static_cast<int>(objective.size()), rows, start.data(), index.data(), value.data(),
                  lower.data(), upper.data(), objective.data(), row_lower.data(), row_upper.data());
  for (size_t i = 0; i < objective.size(); ++i) Cbc_setInteger(model.get(), static_cast<int>(i));
  Cbc_solve(model.get());
  if (Cbc_isProvenOptimal(model.get()) == 0) {
    check(Cbc_isProvenInfeasible(model.get()) != 0, "CBC ended without an optimal allocation (status {})",
          Cbc_status(model.get()));
    return std::nullopt;
  }
  const double* solution = Cbc_getColSolution(model.get());
  std::vector<int> choice(table.groups.size());
  for (size_t g = 0, column = 0; g < table.groups.size(); ++g)
    for (size_t o = 0; o < table.groups[g].options.size(); ++o, ++column)
      if (solution[column] > 0.5) choice[g] = static_cast<int>(o);
  return evaluate(table, std::move(choice));
}

}  // namespace fidelio
