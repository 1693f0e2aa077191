// This file computes the terms that a branch puts on the properties and items of a value.
#include <algorithm>
#include <unordered_set>

#include "core/error.h"
#include "grammar/regex.h"
#include "grammar/schema/expansion.h"

namespace fidelio::grammar {
namespace {

constexpr size_t kStateAStep = 32;  // This is in bytes of an automaton's state.

}  // namespace

bool Expansion::matches(const std::string& pattern, const std::string& text, bool whole) {
  auto& machine = patterns_[{pattern, whole}];
  if (machine == nullptr) {
    Grammar grammar;
    const RuleId start = grammar.add_rule();
    const Fragment all = add_regex(grammar, pattern, whole ? Match::whole : Match::part, Writing::utf8);
    grammar.define(start, grammar.sequence(grammar.empty(), all));
    meter_.memory(grammar.size() * 100);
    machine = std::make_unique<Automaton>(std::move(grammar));
  }
  meter_.work(1 + text.size());
  Automaton::State state = machine->start();
  for (size_t at = 0; at < text.size() && state != Automaton::kDead; ++at) {
    const size_t bytes = machine->bytes();
    state = machine->step(state, static_cast<uint8_t>(text[at]));
    meter_.memory(machine->bytes() - bytes);
    meter_.work((machine->bytes() - bytes) / kStateAStep);
  }
  check(!machine->worn(), "a pattern can be met in too many ways to say whether a name or constant of the schema does");
  return state != Automaton::kDead && machine->accepts(state);
}

// Returns true if properties and items evaluated by the schema at `from` also count as evaluated for its ancestor `to`.
bool Expansion::feeds(const Branch& branch, size_t from, int to) const {
  for (auto at = static_cast<int>(from); at != to; at = branch.applied[static_cast<size_t>(at)].parent) {
    meter_.work(1);
    if (at < to || !branch.applied[static_cast<size_t>(at)].feeds) return false;
  }
  return true;
}

namespace {

// Returns true if the schema's own `properties` or `patternProperties` cover a property.
template <typename Matches>
bool speaks_of(SchemaDocument& document, const Schema& schema, const std::string* name, const Matches& matches) {
  if (name != nullptr && document.property(schema, *name) != nullptr) return true;
  if (const Json* patterns = schema.find("patternProperties"))
    for (const auto& item : patterns->items())
      if (matches(item.key())) return true;
  return false;
}

}  // namespace

bool Expansion::evaluates(const Branch& branch, int self, const std::string* name, const Matcher& matching) {
  for (auto at = static_cast<size_t>(self); at < branch.applied.size(); ++at) {
    const Schema& schema = *branch.applied[at].schema;
    if (branch.applied[at].negated || schema.json == nullptr || !feeds(branch, at, self)) continue;
    if (schema.find("additionalProperties") || speaks_of(document_, schema, name, matching)) return true;
    if (static_cast<int>(at) != self && schema.find("unevaluatedProperties")) return true;
  }
  return false;
}

Terms Expansion::of_property(const Branch& branch, const std::string* name, const Matcher& matching) {
  Terms all;
  for (const int self : branch.order) {
    meter_.work(2);
    const Schema& schema = *branch.applied[static_cast<size_t>(self)].schema;
    if (name != nullptr)
      if (const Schema* own = document_.property(schema, *name)) all.push_back({own});
    if (const Json* patterns = schema.find("patternProperties"))
      for (const auto& [pattern, one] : patterns->items())
        if (matching(pattern)) all.push_back({&document_.at(schema, one)});
    if (const Json* more = schema.find("additionalProperties"))
      if (!speaks_of(document_, schema, name, matching)) all.push_back({&document_.at(schema, *more)});
    if (const Json* more = schema.find("unevaluatedProperties"))
      if (!evaluates(branch, self, name, matching)) all.push_back({&document_.at(schema, *more)});
  }
  if (name != nullptr)
    for (const auto& [one, term] : branch.object.also)
      if (one == *name) all.push_back(term);
  return normalised(all);
}

Terms Expansion::of_property(const Branch& branch, const std::string& name) {
  return of_property(branch, &name, [&](const std::string& pattern) { return matches(pattern, name); });
}

std::vector<std::string> Expansion::names(const Branch& branch) {
  std::vector<std::string> all;
  std::unordered_set<std::string> met;
  const auto add = [&](const std::string& name) {
    meter_.work(1);
    if (met.insert(name).second) all.push_back(name);
  };
  for (const int self : branch.order)
    if (const Json* properties = branch.applied[static_cast<size_t>(self)].schema->find("properties"))
      for (const auto& item : properties->items()) add(item.key());
  for (const std::string& name : branch.object.required) add(name);
  return all;
}

Terms Expansion::of_item(const Branch& branch, int64_t at) {
  Terms all;
  const auto own = [&](const Schema& schema) -> const Json* {
    const Json* prefix = schema.find("prefixItems");
    if (prefix != nullptr && at < std::ssize(*prefix)) return &(*prefix)[static_cast<size_t>(at)];
    return schema.find("items");
  };
  for (const int self : branch.order) {
    meter_.work(2);
    const Schema& schema = *branch.applied[static_cast<size_t>(self)].schema;
    if (const Json* item = own(schema)) all.push_back({&document_.at(schema, *item)});
    const Json* more = schema.find("unevaluatedItems");
    if (more == nullptr) continue;
    bool evaluated = false;
    // An item may meet unevaluatedItems or the schema of a `contains`.
    std::vector<const Schema*> any = {&document_.at(schema, *more)};
    for (auto i = static_cast<size_t>(self); i < branch.applied.size(); ++i) {
      const Schema& below = *branch.applied[i].schema;
      if (branch.applied[i].negated || below.json == nullptr || !feeds(branch, i, self)) continue;
      evaluated = evaluated || own(below) || (static_cast<int>(i) != self && below.find("unevaluatedItems"));
      if (const Json* contains = below.find("contains")) any.push_back(&document_.at(below, *contains));
    }
    if (!evaluated) all.push_back({any.size() == 1 ? any[0] : &either(any)});
  }
  for (const auto& [place, term] : branch.array.also)
    if (place == at) all.push_back(term);
  return normalised(all);
}

// Returns the same schema for the same list.
const Schema& Expansion::either(const std::vector<const Schema*>& schemas) {
  const Schema*& one = either_[schemas];
  if (one == nullptr) one = &document_.any_of(schemas);
  return *one;
}

int64_t Expansion::fixed_items(const Branch& branch) const {
  int64_t fixed = 0;
  for (const int self : branch.order)
    if (const Json* prefix = branch.applied[static_cast<size_t>(self)].schema->find("prefixItems"))
      fixed = std::max(fixed, std::ssize(*prefix));
  for (const auto& [place, term] : branch.array.also) fixed = std::max(fixed, place + 1);
  return fixed;
}

// Returns the values that meet the terms where they are few and known, and nothing where they may be many.
std::optional<std::vector<Json>> Expansion::constants(const Terms& terms) {
  std::vector<Json> all;
  for (const Branch& branch : kept_branches(terms)) {
    if (branch.constants) {
      for (const Json* one : *branch.constants) all.push_back(*one);
      continue;
    }
    if ((branch.kinds & ~(kNull | kBoolean)) != 0) return std::nullopt;
    if (branch.kinds & kNull) all.emplace_back(nullptr);
    if (branch.kinds & kTrue) all.emplace_back(true);
    if (branch.kinds & kFalse) all.emplace_back(false);
  }
  return all;
}

}  // namespace fidelio::grammar
