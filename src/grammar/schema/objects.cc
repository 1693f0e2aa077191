// This file makes rules for objects: members come in the schema's order, and members of other names after them.
#include <algorithm>
#include <set>

#include "core/error.h"
#include "grammar/schema/compiler.h"
#include "grammar/schema/values.h"

namespace fidelio::grammar {
namespace {

constexpr int64_t kMostCounted = 20'000;  // It bounds the states that count members.
constexpr size_t kMostPatterns = 6;
constexpr uint64_t kMemberWork = 20;

}  // namespace

// A state is the next member that may come, together with the number of members so far. Where no count is required, it
// only tells none from some.
class SchemaCompiler::Layout {
 public:
  Layout(SchemaCompiler& compiler, const Properties& properties, int64_t least, int64_t most)
      : c_(compiler), g_(compiler.grammar_), all_(properties), size_(std::ssize(properties.members)), least_(least) {
    const bool counts_most = most >= 0 && (all_.others || most < size_), counts_least = least > all_.needed;
    most_ = counts_most ? most : -1;
    least_ = counts_least ? least : 0;
    top_ = counts_most ? most : std::max<int64_t>(least_, 1);
    counted_ = counts_most || counts_least;
    if (counted_ && (size_ + 2) * (top_ + 1) > kMostCounted)
      refuse(c_.where_, "minProperties or maxProperties of so many properties cannot be imposed on an answer");
    states_.resize(static_cast<size_t>((size_ + 2) * (top_ + 1)), -1);
  }

  Fragment fragment() {
    const Fragment front = c_.row({c_.text("{"), c_.space()}), back = c_.row({c_.space(), c_.text("}")});
    const Fragment bare = c_.text("}"), all{front.first, g_.empty().first};
    g_.link(back.last, all.last), g_.link(bare.last, all.last);
    state(0, 0) = front.last;
    for (int64_t at = 0; at < size_; ++at)
      for (int64_t count = 0; count <= top_; ++count) {
        if (state(at, count) < 0) continue;
        const Member& member = all_.members[static_cast<size_t>(at)];
        if (!member.required) pass(state(at, count), at + 1, count);
        add(at, count, at + 1, [&] { return one(at); });
      }
    for (const int64_t at : {size_, size_ + 1})
      for (int64_t count = 0; count <= top_; ++count) {
        if (state(at, count) < 0) continue;
        // Members of other names may all have the same name, so together they count as one only.
        if (all_.others && (at > size_ || count + 1 >= least_))
          add(at, count, size_ + 1, [&] { return g_.call(*all_.others); });
        if (at > size_ || count >= least_) g_.link(state(at, count), count == 0 ? bare.first : back.first);
      }
    return all;
  }

 private:
  NodeId& state(int64_t at, int64_t count) { return states_[static_cast<size_t>(at * (top_ + 1) + count)]; }
  NodeId made(int64_t at, int64_t count) {
    if (state(at, count) < 0) state(at, count) = g_.empty().first;
    return state(at, count);
  }
  void pass(NodeId from, int64_t at, int64_t count) { g_.link(from, made(at, count)); }
  template <typename Make>
  void add(int64_t at, int64_t count, int64_t next, const Make& make) {
    if (most_ >= 0 && count >= most_) return;
    const Fragment part = count == 0 ? make() : c_.row({g_.call(c_.comma_), make()});
    g_.link(state(at, count), part.first);
    pass(part.last, next, std::min(count + 1, top_));
  }
  // A member that may stand in many places is a rule of its own.
  Fragment one(int64_t at) {
    const Member& member = all_.members[static_cast<size_t>(at)];
    if (!counted_) return c_.member(member.name, member.value);
    if (rules_.size() <= static_cast<size_t>(at)) rules_.resize(static_cast<size_t>(at) + 1, -1);
    RuleId& rule = rules_[static_cast<size_t>(at)];
    if (rule < 0) rule = c_.rule_of(c_.member(member.name, member.value));
    return g_.call(rule);
  }

  SchemaCompiler& c_;
  Grammar& g_;
  const Properties& all_;
  int64_t size_, least_, most_ = -1, top_ = 1;
  bool counted_ = false;
  std::vector<NodeId> states_{};
  std::vector<RuleId> rules_{};
};

Fragment SchemaCompiler::member(const std::string& name, RuleId value) {
  return row({text(written(Json(name)) + ":"), space(), grammar_.call(value)});
}

std::optional<Fragment> SchemaCompiler::object(const Branch& branch) {
  const ObjectForm& form = branch.object;
  auto all = properties(branch);
  if (!all) return std::nullopt;
  const auto named = std::ssize(all->members);
  all->others = other_members(branch, *all, form.least > named);
  if (form.most >= 0 && form.most < all->needed) {
    reason_ = "more properties are required than maxProperties allows";
    return std::nullopt;
  }
  if (form.least > named + (all->others ? 1 : 0)) {
    if (all->others)
      refuse(where_, "minProperties above the number of named properties and one: other keys might repeat");
    reason_ = "minProperties asks for more properties than are allowed";
    return std::nullopt;
  }
  if (all->members.empty() && all->others == any_member_ && form.least == 0 && form.most < 0)
    return grammar_.call(object_);
  return Layout(*this, *all, form.least, form.most).fragment();
}

std::optional<SchemaCompiler::Properties> SchemaCompiler::properties(const Branch& branch) {
  Properties all;
  const ObjectForm& form = branch.object;
  all.known = expansion_.names(branch);
  const std::set<std::string> required(form.required.begin(), form.required.end());
  const Terms names = expansion_.normalised(form.names);
  if (const auto listed = expansion_.constants(names)) {
    std::set<std::string> met(all.known.begin(), all.known.end());
    for (const Json& name : *listed)
      if (name.is_string() && met.insert(name.get<std::string>()).second) all.known.push_back(name.get<std::string>());
  }
  for (const std::string& name : all.known) {
    grammar_.meter().work(kMemberWork);
    const Terms terms = expansion_.of_property(branch, name);
    const bool forbidden = form.absent.contains(name) || !expansion_.holds(names, Json(name)) || is_nothing(terms);
    if (!forbidden) {
      all.members.push_back({name, rule_of(terms), required.contains(name)});
      all.needed += all.members.back().required;
    } else if (required.contains(name)) {
      reason_ = "\"" + name + "\" is required and forbidden";
      return std::nullopt;
    }
  }
  return all;
}

// Makes a rule for members of other names. Those that match patterns are grouped by the set of patterns that they
// match. Members that match none are allowed where a schema describes them, or where there are no other members.
std::optional<RuleId> SchemaCompiler::other_members(const Branch& branch, const Properties& properties, bool wanted) {
  std::vector<std::string> patterns;
  bool described = wanted;
  for (const int self : branch.order) {
    const Schema& schema = *branch.applied[static_cast<size_t>(self)].schema;
    if (const Json* own = schema.find("patternProperties"))
      for (const auto& item : own->items())
        if (std::find(patterns.begin(), patterns.end(), item.key()) == patterns.end()) patterns.push_back(item.key());
    for (const char* key : {"additionalProperties", "unevaluatedProperties"})
      if (const Json* more = schema.find(key))
        described = described || !document_.is_trivial(document_.at(schema, *more));
  }
  if (patterns.size() > kMostPatterns)
    refuse(where_,
           fmt::format("more than {} patterns of patternProperties cannot be imposed on one answer", kMostPatterns));
  described = described || (properties.members.empty() && patterns.empty());
  std::vector<Fragment> all;
  for (size_t set = described ? 0 : 1; set < size_t{1} << patterns.size(); ++set) {
    StringForm form;
    for (size_t i = 0; i < patterns.size(); ++i) form.patterns.emplace_back(patterns[i], (set >> i & 1) == 0);
    const Terms terms = expansion_.of_property(branch, nullptr, [&](const std::string& pattern) {
      const auto at = std::find(patterns.begin(), patterns.end(), pattern) - patterns.begin();
      return (set >> at & 1) != 0;
    });
    if (is_nothing(terms)) continue;
    form.unwanted = properties.known;
    form.unwanted.insert(form.unwanted.end(), branch.object.absent.begin(), branch.object.absent.end());
    if (terms.empty() && form.plain() && branch.object.names.empty()) return any_member_;
    if (const auto name = name_of_others(branch, std::move(form)))
      all.push_back(row({*name, text(":"), space(), grammar_.call(rule_of(terms))}));
  }
  if (all.empty()) return std::nullopt;
  return rule_of(grammar_.choice(all));
}

std::optional<Fragment> SchemaCompiler::name_of_others(const Branch& branch, StringForm form) {
  const Terms names = expansion_.normalised(branch.object.names);
  if (names.empty()) return string(form);
  std::vector<Fragment> all;
  for (const Branch& one : expansion_.kept_branches(names)) {
    if (one.constants || (one.kinds & kString) == 0) continue;  // Listed names are known.
    StringForm both = one.string;
    both.patterns.insert(both.patterns.end(), form.patterns.begin(), form.patterns.end());
    both.unwanted.insert(both.unwanted.end(), form.unwanted.begin(), form.unwanted.end());
    if (const auto name = string(both)) all.push_back(*name);
  }
  if (all.empty()) return std::nullopt;
  return grammar_.choice(all);
}

}  // namespace fidelio::grammar
