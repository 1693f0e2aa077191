// This file makes rules for arrays.
#include <algorithm>

#include "grammar/schema/compiler.h"
#include "grammar/schema/values.h"

namespace fidelio::grammar {
namespace {

constexpr int64_t kMostItemStates = 20'000;

}  // namespace

// A state is the number of items so far, together with the number of items that have met each `contains`.
class SchemaCompiler::Items {
 public:
  Items(SchemaCompiler& compiler, const Branch& branch) : c_(compiler), g_(compiler.grammar_), branch_(branch) {
    const ArrayForm& form = branch.array;
    last_ = form.most >= 0 ? form.most : std::max({form.least, c_.expansion_.fixed_items(branch), int64_t{1}});
    for (const Contains& one : form.contains) {
      sizes_.push_back((one.most >= 0 ? one.most : one.least) + 1);
      counts_ *= sizes_.back();
      if (sizes_.size() > 3 || counts_ * (last_ + 1) > kMostItemStates)
        refuse(c_.where_, "contains of so many items cannot be imposed on an answer");
    }
    states_.resize(static_cast<size_t>((last_ + 1) * counts_), -1);
  }

  std::optional<Fragment> fragment() {
    const Fragment front = c_.row({c_.text("["), c_.space()}), back = c_.row({c_.space(), c_.text("]")});
    state(0, 0) = front.last;
    bool ends = false;
    for (int64_t at = 0; at <= last_; ++at) {
      const bool goes_on = at < last_ || branch_.array.most < 0;
      const Terms item = goes_on ? c_.expansion_.of_item(branch_, at) : Terms{};
      for (int64_t count = 0; count < counts_; ++count) {
        if (state(at, count) < 0) continue;
        if (at >= branch_.array.least && is_enough(count)) {
          g_.link(state(at, count), back.first);
          ends = true;
        }
        if (goes_on) add_items(at, count, item);
      }
    }
    if (!ends) c_.reason_ = "minItems or contains asks for more items than are allowed";
    return ends ? std::optional<Fragment>({front.first, back.last}) : std::nullopt;
  }

 private:
  NodeId& state(int64_t at, int64_t count) { return states_[static_cast<size_t>(at * counts_ + count)]; }
  bool is_enough(int64_t count) const {
    for (size_t i = 0; i < sizes_.size(); count /= sizes_[i++])
      if (count % sizes_[i] < branch_.array.contains[i].least) return false;
    return true;
  }
  // Adds one more item for each set of `contains` schemas that it meets. Where a schema has a maximum, an item that
  // does not count for it must not meet it.
  void add_items(int64_t at, int64_t count, const Terms& item) {
    for (size_t met = 0; met < size_t{1} << sizes_.size(); ++met) {
      Terms terms = item;
      int64_t next = 0, unit = 1, rest = count;
      bool too_many = false;
      for (size_t i = 0; i < sizes_.size(); rest /= sizes_[i], unit *= sizes_[i], ++i) {
        const Contains& one = branch_.array.contains[i];
        const bool counts = (met >> i & 1) != 0, full = rest % sizes_[i] + 1 == sizes_[i];
        too_many = too_many || (counts && full && one.most >= 0);
        if (counts || one.most >= 0) terms.push_back({one.term.schema, one.term.negated == counts});
        next += unit * (rest % sizes_[i] + (counts && !full ? 1 : 0));
      }
      terms = c_.expansion_.normalised(terms);
      if (too_many || c_.is_nothing(terms)) continue;
      const Fragment value = g_.call(c_.rule_of(terms)), part = at == 0 ? value : c_.row({g_.call(c_.comma_), value});
      NodeId& to = state(std::min(at + 1, last_), next);
      if (to < 0) to = g_.empty().first;
      g_.link(state(at, count), part.first), g_.link(part.last, to);
    }
  }

  SchemaCompiler& c_;
  Grammar& g_;
  const Branch& branch_;
  int64_t last_ = 1, counts_ = 1;
  std::vector<int64_t> sizes_{};
  std::vector<NodeId> states_{};
};

std::optional<Fragment> SchemaCompiler::array(const Branch& branch) {
  const ArrayForm& form = branch.array;
  if ((branch.suggested & kArray) == 0 && form.contains.empty() && form.also.empty() && form.least == 0 &&
      form.most < 0)
    return grammar_.call(array_);
  if (form.unique && (form.most < 0 || form.most > 1)) return unique_items(branch);
  return Items(*this, branch).fragment();
}

std::optional<Fragment> SchemaCompiler::unique_items(const Branch& branch) {
  if (branch.array.contains.empty()) {
    if (const auto all = listed_once(branch)) return *all;
    if (differ(branch)) return Items(*this, branch).fragment();
  }
  refuse(where_, "uniqueItems cannot be imposed but on arrays whose items are of at most 8 listed values");
}

// Tells whether every two items must differ, because no value fits both places.
bool SchemaCompiler::differ(const Branch& branch) {
  constexpr int64_t kMostPairs = 8;
  const ArrayForm& form = branch.array;
  const int64_t fixed = expansion_.fixed_items(branch);
  const bool closed = is_nothing(expansion_.of_item(branch, fixed));
  const int64_t length = form.most >= 0 ? (closed ? std::min(fixed, form.most) : form.most)
                         : closed       ? fixed
                                        : kMostPairs + 1;
  if (length > kMostPairs) return false;
  for (int64_t i = 0; i < length; ++i)
    for (int64_t j = 0; j < i; ++j) {
      Terms both = expansion_.of_item(branch, i);
      for (const Term& term : expansion_.of_item(branch, j)) both.push_back(term);
      if (!expansion_.impossible(both)) return false;
    }
  return true;
}

// Makes a state for each set of values that are already in the array.
std::optional<Fragment> SchemaCompiler::listed_once(const Branch& branch) {
  constexpr size_t kMostValues = 8;
  const ArrayForm& form = branch.array;
  const int64_t fixed = expansion_.fixed_items(branch);
  std::vector<Json> values;
  // These are the values that may stand at each place; the last entry is for all further places.
  std::vector<std::vector<size_t>> at_place;
  for (int64_t i = 0; i <= fixed; ++i) {
    at_place.emplace_back();
    const Terms terms = expansion_.of_item(branch, i);
    if (is_nothing(terms)) continue;
    const auto all = expansion_.constants(terms);
    if (!all) return std::nullopt;
    for (const Json& one : *all) {
      size_t at = 0;
      while (at < values.size() && !is_same(values[at], one)) ++at;
      if (at == values.size()) values.push_back(one);
      if (values.size() > kMostValues) return std::nullopt;
      at_place.back().push_back(at);
    }
  }
  std::vector<RuleId> rules;
  for (const Json& one : values) rules.push_back(rule_of(text(written(one))));
  const Fragment front = row({text("["), space()}), back = row({space(), text("]")});
  std::vector<NodeId> states(size_t{1} << values.size(), -1);
  states[0] = front.last;
  for (size_t set = 0; set < states.size(); ++set) {
    const auto length = static_cast<int64_t>(__builtin_popcountll(set));
    if (states[set] < 0) continue;
    if (length >= form.least) grammar_.link(states[set], back.first);
    if (form.most >= 0 && length >= form.most) continue;
    for (const size_t value : at_place[static_cast<size_t>(std::min(length, fixed))]) {
      if ((set >> value & 1) != 0) continue;
      NodeId& to = states[set | size_t{1} << value];
      if (to < 0) to = grammar_.empty().first;
      const Fragment one = grammar_.call(rules[value]), part = set == 0 ? one : row({grammar_.call(comma_), one});
      grammar_.link(states[set], part.first), grammar_.link(part.last, to);
    }
  }
  return Fragment{front.first, back.last};
}

}  // namespace fidelio::grammar
