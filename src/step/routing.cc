#include "step/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace fidelio {
namespace {

// Chosen holds the experts of one row, ascending, and their shares.
struct Chosen {
  std::vector<int32_t> experts;
  std::vector<double> shares;
};

void choose(std::span<const float> logits, const RoutingRule& rule, std::vector<int32_t>& order, Chosen& chosen) {
  order.resize(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int32_t expert) { return logits[static_cast<size_t>(expert)]; };
  const auto before = [&](int32_t a, int32_t b) {
    const float x = value(a), y = value(b);
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? a < b : std::isnan(y);
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + rule.per_row, order.end(), before);
  const double largest = static_cast<double>(value(order[0]));
  const auto weight = [&](int32_t expert) { return std::exp(static_cast<double>(value(expert)) - largest); };
  chosen.experts.assign(order.begin(), order.begin() + rule.per_row);
  std::ranges::sort(chosen.experts);
  double sum = 0;
  if (rule.renormalised)
    for (const int32_t expert : chosen.experts) sum += weight(expert);
  else
    for (int32_t expert = 0; expert < rule.experts; ++expert) sum += weight(expert);
  chosen.shares.clear();
  for (const int32_t expert : chosen.experts) chosen.shares.push_back(weight(expert) / sum);
}

}  // namespace

void route(std::span<const float> logits, const RoutingRule& rule, Routes& routes) {
  const auto E = static_cast<size_t>(rule.experts), n = logits.size() / E;
  thread_local std::vector<int32_t> order;
  thread_local Chosen chosen;
  thread_local std::vector<int32_t> experts;  // (n, k)
  thread_local std::vector<float> shares;     // (n, k)
  experts.clear(), shares.clear();
  for (size_t row = 0; row < n; ++row) {
    choose(logits.subspan(row * E, E), rule, order, chosen);
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
