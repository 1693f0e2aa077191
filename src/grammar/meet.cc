#include "grammar/meet.h"

#include <algorithm>
#include <map>
#include <utility>

namespace fidelio::grammar {
namespace {

// This determinises an expression. A state is the set of places that the expression may be at, and a byte leads to one
// next state.
class Sets {
 public:
  struct Way {
    uint8_t low, high;
    int32_t to;
  };
  Sets(Grammar& grammar, Fragment all) : grammar_(grammar), meter_(grammar.meter()), last_(all.last) {
    of({all.first});
  }
  bool ends(int32_t set) const { return std::binary_search(set_[at(set)].begin(), set_[at(set)].end(), last_); }
  // Returns the ways for every byte, in order. Where a byte cannot be read, the next set is the empty one.
  const std::vector<Way>& ways(int32_t set) {
    if (ways_[at(set)].empty()) ways_[at(set)] = made(set);
    return ways_[at(set)];
  }

 private:
  static size_t at(int32_t set) { return static_cast<size_t>(set); }

  int32_t of(std::vector<NodeId> places) {
    std::vector<NodeId> left = places;
    std::sort(places.begin(), places.end());
    while (!left.empty()) {
      const Node& node = grammar_.node(left.back());
      left.pop_back();
      meter_.work(1 + node.free.size());
      for (const NodeId to : node.free) {
        const auto place = std::lower_bound(places.begin(), places.end(), to);
        if (place != places.end() && *place == to) continue;
        meter_.work(places.size() / 16);
        places.insert(place, to);
        left.push_back(to);
      }
    }
    const auto [found, fresh] = number_of_.try_emplace(places, static_cast<int32_t>(set_.size()));
    if (fresh) {
      meter_.memory(places.size() * 2 * sizeof(NodeId) + 256);
      set_.push_back(std::move(places));
      ways_.emplace_back();
    }
    return found->second;
  }

  std::vector<Way> made(int32_t set) {
    std::vector<ByteEdge> edges;
    std::vector<int> begins = {0, 256};
    for (const NodeId place : set_[at(set)])
      for (const ByteEdge& edge : grammar_.node(place).bytes) {
        edges.push_back(edge);
        begins.insert(begins.end(), {edge.low, edge.high + 1});
      }
    std::sort(begins.begin(), begins.end());
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    std::vector<Way> ways;
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      std::vector<NodeId> next;
      meter_.work(1 + edges.size() / 4);
      for (const ByteEdge& edge : edges)
        if (edge.low <= begins[i] && begins[i] <= edge.high) next.push_back(edge.to);
      std::sort(next.begin(), next.end());
      next.erase(std::unique(next.begin(), next.end()), next.end());
      ways.push_back({static_cast<uint8_t>(begins[i]), static_cast<uint8_t>(begins[i + 1] - 1), of(std::move(next))});
    }
    return ways;
  }

  const Grammar& grammar_;
  Meter& meter_;
  NodeId last_;
  std::map<std::vector<NodeId>, int32_t> number_of_;
  std::vector<std::vector<NodeId>> set_;
  std::vector<std::vector<Way>> ways_;
};

// This is the product of `a` and `b`: places of `a`, each paired with the set of places that `b` is at.
class Pairs {
 public:
  Pairs(Grammar& grammar, Fragment a, Fragment b, Meet kind)
      : grammar_(grammar), meter_(grammar.meter()), a_(a), kind_(kind), sets_(grammar, b) {}

  std::optional<Fragment> fragment() {
    pair_of(a_.first, 0);
    for (int32_t p = 0; p < static_cast<int32_t>(pairs_.size()); ++p) look(p);
    const std::vector<char> reaches = those_that_end();
    if (reaches[0] == 0) return std::nullopt;
    std::vector<NodeId> node(pairs_.size(), -1);
    for (size_t p = 0; p < pairs_.size(); ++p)
      if (reaches[p] != 0) node[p] = grammar_.empty().first;
    const Fragment all{node[0], grammar_.empty().first};
    for (const Step& step : steps_) {
      const NodeId from = node[at(step.from)], to = node[at(step.to)];
      if (from < 0 || to < 0) continue;
      step.reads ? grammar_.read(from, step.low, step.high, to) : grammar_.link(from, to);
    }
    for (const int32_t p : ends_) grammar_.link(node[at(p)], all.last);
    return all;
  }

 private:
  struct Step {
    int32_t from, to;
    bool reads;
    uint8_t low, high;
  };
  static size_t at(int32_t pair) { return static_cast<size_t>(pair); }

  int32_t pair_of(NodeId place, int32_t set) {
    const auto [found, fresh] = number_of_.try_emplace({place, set}, static_cast<int32_t>(pairs_.size()));
    if (fresh) {
      meter_.memory(128);
      pairs_.push_back({place, set});
    }
    return found->second;
  }

  void look(int32_t pair) {
    const auto [place, set] = pairs_[at(pair)];
    if (place == a_.last && sets_.ends(set) == (kind_ == Meet::both)) ends_.push_back(pair);
    const Node node = grammar_.node(place);
    for (const NodeId to : node.free) add({pair, pair_of(to, set), false, 0, 0});
    for (const ByteEdge& edge : node.bytes)
      for (const Sets::Way& way : sets_.ways(set)) {
        const uint8_t low = std::max(edge.low, way.low), high = std::min(edge.high, way.high);
        if (low <= high) add({pair, pair_of(edge.to, way.to), true, low, high});
      }
  }
  void add(Step step) {
    meter_.work(4);
    meter_.memory(sizeof step);
    steps_.push_back(step);
  }

  // Returns which pairs can reach an end. The others would be begun and could not be ended.
  std::vector<char> those_that_end() const {
    std::vector<std::vector<int32_t>> before(pairs_.size());
    for (const Step& step : steps_) before[at(step.to)].push_back(step.from);
    std::vector<char> reaches(pairs_.size());
    std::vector<int32_t> left = ends_;
    for (const int32_t p : ends_) reaches[at(p)] = 1;
    while (!left.empty()) {
      const int32_t p = left.back();
      left.pop_back();
      for (const int32_t from : before[at(p)])
        if (std::exchange(reaches[at(from)], 1) == 0) left.push_back(from);
    }
    return reaches;
  }

  Grammar& grammar_;
  Meter& meter_;
  Fragment a_;
  Meet kind_;
  Sets sets_;
  std::map<std::pair<NodeId, int32_t>, int32_t> number_of_;
  std::vector<std::pair<NodeId, int32_t>> pairs_;
  std::vector<Step> steps_;
  std::vector<int32_t> ends_;
};

}  // namespace

std::optional<Fragment> meet(Grammar& grammar, Fragment a, Fragment b, Meet kind) {
  return Pairs(grammar, a, b, kind).fragment();
}

}  // namespace fidelio::grammar
