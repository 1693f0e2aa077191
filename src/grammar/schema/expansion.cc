#include "grammar/schema/expansion.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "core/error.h"
#include "grammar/schema/values.h"

namespace fidelio::grammar {
namespace {

constexpr int64_t kMostCount = 10'000;
constexpr uint64_t kBranchWork = 8, kTermWork = 2;
constexpr uint64_t kPairMemory = 64;
constexpr size_t kFewCases = 32;  // The pairs of a oneOf are compared in depth only if it has at most this many cases.

constexpr uint64_t kCopiedAStep = 128;  // This is in bytes of a branch.

// Returns the approximate bytes of a branch, including the overhead of its strings and sets.
size_t bytes_of(const Branch& b) {
  constexpr size_t kString = 64, kNode = 96;
  return sizeof(Branch) + b.applied.size() * (sizeof(Applied) + sizeof(int)) +
         (b.object.required.size() + b.object.also.size() + b.string.patterns.size() + b.string.unwanted.size()) *
             kString +
         (b.object.absent.size() + b.number.unwanted.size() + b.number.steps.size() + b.number.no_steps.size()) *
             kNode +
         (b.unwanted.size() + b.array.contains.size() * 5 + b.array.also.size() * 3) * sizeof(void*);
}

}  // namespace

unsigned kind_of(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return value.get<bool>() ? kTrue : kFalse;
  if (value.is_number()) return decimal_in(value).whole() ? kInteger : kFraction;
  if (value.is_string()) return kString;
  return value.is_array() ? kArray : kObject;
}

int64_t count_of(const Schema& schema, const std::string& key, const Json& value) {
  const double count = value.is_number() ? value.get<double>() : -1;
  if (!(count >= 0 && count <= kMostCount) || count != std::floor(count))
    refuse(schema.where(), fmt::format("{}: expected 0 to {}", key, kMostCount));
  return static_cast<int64_t>(count);
}

Bound bound_of(const Schema& schema, const std::string& key, const Json& value, bool low, bool excluded) {
  if (value.is_boolean()) refuse(schema.where(), key + " is the form of draft 4: give a number");
  if (!value.is_number()) refuse(schema.where(), key + " is not a number");
  if (keeps_digits(value)) return {decimal_in(value), excluded};
  // The integer in the schema is one of those that are rounded to this number, so the next number is certainly within
  // the bound.
  const double x = value.get<double>(), next = std::nextafter(x, low ? HUGE_VAL : -HUGE_VAL);
  return {decimal_of(fmt::format("{:.0f}", std::isfinite(next) ? next : x)), excluded};
}

Terms Expansion::normalised(const Terms& terms) {
  Terms all;
  for (const Term& term : terms) {
    const Schema& schema = document_.settled(*term.schema);
    if (term.negated || !document_.is_trivial(schema)) all.push_back({&schema, term.negated});
  }
  meter_.work(all.size() * kTermWork);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

const std::vector<Branch>& Expansion::kept_branches(const Terms& terms) {
  if (const auto found = kept_.find(terms); found != kept_.end()) return found->second;
  std::vector<Branch> made = branches(terms);
  return kept_.emplace(terms, std::move(made)).first->second;
}

// Choices are made one after the other. When all are made, the branch is complete, and the search goes back to the last
// choice that has another way.
std::vector<Branch> Expansion::branches(const Terms& terms) {
  struct Frame {
    Open open;
    std::shared_ptr<const Choice> choice;
    size_t way;
  };
  std::vector<Branch> all;
  std::vector<Frame> frames;
  Open open;
  for (auto term = terms.rbegin(); term != terms.rend(); ++term) open.pending.push_back({*term, -1, false, -1});
  while (true) {
    while (!open.dead && !open.pending.empty()) {
      const Pending next = open.pending.back();
      open.pending.pop_back();
      apply(open, next);
    }
    if (!open.dead && open.choices.empty() && !open.branch.object.outside.empty()) {
      choose_outside(open);
      continue;
    }
    if (!open.dead && !open.choices.empty()) {
      const std::shared_ptr<const Choice> choice = open.choices.front();
      open.choices.erase(open.choices.begin());
      if ((open.branch.kinds & choice->kinds) == 0) continue;
      frames.push_back({std::move(open), choice, 0});
    } else if (!open.dead && finish(open.branch)) {
      meter_.memory(bytes_of(open.branch));
      all.push_back(std::move(open.branch));
    }
    while (!frames.empty() && frames.back().way == frames.back().choice->ways.size()) frames.pop_back();
    if (frames.empty()) return all;
    Frame& last = frames.back();
    const Effect& effect = last.choice->ways[last.way++];
    meter_.work(kBranchWork + bytes_of(last.open.branch) / kCopiedAStep);
    open = last.open;
    effect(open);
  }
}

void Expansion::kill(Open& open, std::string reason) {
  open.dead = true;
  reason_ = std::move(reason);
}

void Expansion::restrict_to(Open& open, unsigned kinds) {
  open.branch.kinds &= kinds;
  open.branch.typed = true;
  if (open.branch.kinds == 0) kill(open, "no value has all the types that are asked for");
}
void Expansion::require(Open& open, const std::string& name) {
  if (open.branch.object.absent.contains(name)) no_object(open, name);
  open.branch.object.required.push_back(name);
}
void Expansion::forbid(Open& open, const std::string& name) {
  const auto& required = open.branch.object.required;
  meter_.work(1 + required.size() / 8);
  if (std::find(required.begin(), required.end(), name) != required.end()) no_object(open, name);
  open.branch.object.absent.insert(name);
}
// Values of other types are not affected by properties.
void Expansion::no_object(Open& open, const std::string& name) {
  open.branch.kinds &= ~(kObject + 0U);
  reason_ = "\"" + name + "\" is required and forbidden";
  if (open.branch.kinds == 0) kill(open, reason_);
}
void Expansion::choose(Open& open, std::vector<Effect> ways, unsigned kinds) {
  if (ways.empty()) return kill(open, "no value at all fits");
  if (ways.size() == 1 && kinds == kEvery) return ways[0](open);
  open.choices.push_back(std::make_shared<const Choice>(Choice{std::move(ways), kinds}));
}
// Applies the terms on behalf of the schema `self`; the first one is applied first.
Expansion::Effect Expansion::meeting(int self, Terms terms, bool feeds) {
  return [self, terms = std::move(terms), feeds](Open& open) {
    for (auto term = terms.rbegin(); term != terms.rend(); ++term) open.pending.push_back({*term, self, feeds, -1});
  };
}

void Expansion::apply(Open& open, const Pending& next) {
  const Schema& schema = document_.settled(*next.term.schema);
  int self = next.beside;
  auto& applied = open.branch.applied;
  if (self < 0) {
    for (int above = next.parent; above >= 0; above = applied[static_cast<size_t>(above)].parent) {
      const Applied& one = applied[static_cast<size_t>(above)];
      meter_.work(1);
      if (one.schema == &schema && one.negated == next.term.negated)
        refuse(schema.where(), "a schema refers to itself without anything in between");
    }
    self = static_cast<int>(applied.size());
    applied.push_back({&schema, next.parent, next.term.negated, next.feeds});
    if (!schema.any.empty() && !next.term.negated) return apply_any(open, self, schema.any);
    if (next.term.negated) return apply_negated(open, schema, self);
    if (schema.is(true)) return;
    if (schema.is(false)) return kill(open, "no value at all fits");
    if (!schema.json->is_object()) refuse(schema.where(), "expected a schema: an object, true or false");
    Terms targets;
    for (const char* key : {"$ref", "$dynamicRef"})
      if (const Json* reference = schema.find(key)) targets.push_back({&document_.target(schema, key, *reference)});
    if (!targets.empty()) {
      open.pending.push_back({next.term, next.parent, next.feeds, self});
      return meeting(self, std::move(targets), true)(open);
    }
  }
  open.branch.order.push_back(self);
  apply_keywords(open, schema, self);
}

void Expansion::apply_keywords(Open& open, const Schema& schema, int self) {
  Terms next;
  for (const auto& [key, value] : schema.json->items()) {
    meter_.work(kTermWork);
    if (!apply_logic(open, schema, self, key, value, next)) apply_typed(open, schema, key, value);
    if (open.dead) return;
  }
  meeting(self, std::move(next), true)(open);
}

std::vector<const Schema*> Expansion::listed(const Schema& schema, const std::string& key, const Json& value) {
  if (!value.is_array() || value.empty()) refuse(schema.where(), key + " is not a list of schemas");
  std::vector<const Schema*> all;
  for (const Json& one : value) all.push_back(&document_.at(schema, one));
  meter_.work(all.size() * kTermWork);
  return all;
}

bool Expansion::apply_logic(Open& open, const Schema& schema, int self, const std::string& key, const Json& value,
                            Terms& next) {
  if (key == "$recursiveRef") refuse(schema.where(), "\"$recursiveRef\" cannot be imposed on an answer");
  if (key == "allOf") {
    for (const Schema* one : listed(schema, key, value)) next.push_back({one});
  } else if (key == "anyOf") {
    apply_any(open, self, listed(schema, key, value));
  } else if (key == "oneOf") {
    apply_one(open, schema, self, listed(schema, key, value));
  } else if (key == "not") {
    open.pending.push_back({{&document_.at(schema, value), true}, self, false, -1});
  } else if (key == "if") {
    apply_if(open, schema, self, value);
  } else if (key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies") {
    apply_dependencies(open, schema, self, key, value);
  } else if (key == "const" || key == "enum") {
    apply_constants(open, schema, key, value);
  } else {
    return false;
  }
  return true;
}

void Expansion::apply_constants(Open& open, const Schema& schema, const std::string& key, const Json& value) {
  if (key == "enum" && (!value.is_array() || value.empty())) refuse(schema.where(), "enum is not a list of values");
  if (!keeps_digits(value))
    refuse(schema.where(),
           "a constant number beyond 64 bits would not be answered digit by digit: give it as a string");
  std::vector<const Json*> all;
  const size_t count = key == "enum" ? value.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const Json* one = key == "enum" ? &value[i] : &value;
    meter_.work(kTermWork);
    auto& before = open.branch.constants;
    if (before) meter_.work(before->size());
    if (!before || std::any_of(before->begin(), before->end(), [&](const Json* b) { return is_same(*b, *one); }))
      all.push_back(one);
  }
  open.branch.constants = std::move(all);
  open.branch.typed = true;
}

// A keyword above may need to know which properties or items are evaluated. That is known only for the cases that a way
// assumes to be met, so there is a way for every set of cases, unless there are many.
void Expansion::apply_any(Open& open, int self, const std::vector<const Schema*>& cases) {
  constexpr size_t kMostTogether = 5;
  Terms all;
  std::unordered_set<const Schema*> met;
  for (const Schema* one : cases) {
    const Schema& schema = document_.settled(*one);
    if (met.insert(&schema).second) all.push_back({&schema});
  }
  std::vector<Effect> ways;
  for (const Term& term : all) ways.push_back(meeting(self, {term}, true));
  if (all.size() > 1 && all.size() <= kMostTogether && is_watched(open.branch, self))
    for (size_t set = 0; set < size_t{1} << all.size(); ++set) {
      Terms together;
      for (size_t i = 0; i < all.size(); ++i)
        if (set >> i & 1) together.push_back(all[i]);
      if (together.size() > 1) ways.push_back(meeting(self, std::move(together), true));
    }
  choose(open, std::move(ways), kEvery);
}

// Lists for each case of a oneOf the other cases that a value may meet together with it. While the list is being
// computed, all cases count as possible together.
const std::vector<std::vector<size_t>>& Expansion::together(const Schema& schema,
                                                            const std::vector<const Schema*>& cases) {
  auto& kept = together_[&schema];
  if (!kept.empty()) return kept;
  const size_t count = cases.size();
  std::vector<std::vector<size_t>> found(count);
  kept.resize(count);
  for (size_t i = 0; i < count && count <= kFewCases; ++i)
    for (size_t j = 0; j < count; ++j)
      if (i != j) kept[i].push_back(j);
  for (size_t i = 0; i < count; ++i)
    for (size_t j = 0; j < i; ++j)
      if (!exclusive(*cases[i], *cases[j], count <= kFewCases)) {
        meter_.memory(kPairMemory);
        found[i].push_back(j), found[j].push_back(i);
      }
  return together_[&schema] = std::move(found);
}

void Expansion::apply_one(Open& open, const Schema& schema, int self, const std::vector<const Schema*>& cases) {
  const std::vector<std::vector<size_t>>& beside = together(schema, cases);
  std::vector<Effect> ways;
  for (size_t i = 0; i < cases.size(); ++i) {
    Terms terms = {{cases[i]}};
    for (const size_t j : beside[i]) terms.push_back({cases[j], true});
    ways.push_back([self, terms](Open& to) {  // A case that is not met evaluates nothing.
      for (size_t at = terms.size(); at-- > 0;) to.pending.push_back({terms[at], self, at == 0, -1});
    });
  }
  choose(open, std::move(ways), kEvery);
}

void Expansion::apply_if(Open& open, const Schema& schema, int self, const Json& condition) {
  const Schema& when = document_.at(schema, condition);
  const Json *then = schema.find("then"), *otherwise = schema.find("else");
  if (then == nullptr && otherwise == nullptr && !is_watched(open.branch, self)) return;
  Terms met = {{&when}}, not_met;
  if (then != nullptr) met.push_back({&document_.at(schema, *then)});
  if (otherwise != nullptr) not_met.push_back({&document_.at(schema, *otherwise)});
  const Effect first = meeting(self, met, true), second = meeting(self, not_met, true),
               condition_not = meeting(self, {{&when, true}}, false);
  choose(open, {first, [second, condition_not](Open& to) { second(to), condition_not(to); }}, kEvery);
}

void Expansion::apply_dependencies(Open& open, const Schema& schema, int self, const std::string& key,
                                   const Json& value) {
  if (!value.is_object()) refuse(schema.where(), key + " is not an object");
  open.branch.suggested |= kObject;
  for (const auto& [name, asked] : value.items()) {
    Terms terms;
    std::vector<std::string> names;
    if (key == "dependentSchemas" || (key == "dependencies" && !asked.is_array())) {
      terms.push_back({&document_.at(schema, asked)});
    } else {
      names = names_in(schema, key, asked);
    }
    const Effect met = meeting(self, terms, true);
    const auto present = [this, name = name, names, met](Open& to) {
      to.branch.kinds &= kObject;
      require(to, name);
      for (const std::string& one : names) require(to, one);
      met(to);
    };
    choose(open, {[this, name = name](Open& to) { forbid(to, name); }, present}, kObject);
  }
}

std::vector<std::string> Expansion::names_in(const Schema& schema, const std::string& key, const Json& value) {
  std::vector<std::string> all;
  if (!value.is_array()) refuse(schema.where(), key + " is not a list of names");
  for (const Json& one : value) {
    if (!one.is_string()) refuse(schema.where(), key + " is not a list of names");
    all.push_back(one.get<std::string>());
  }
  meter_.work(all.size());
  return all;
}

bool Expansion::is_watched(const Branch& branch, int self) const {
  for (int at = self; at >= 0; at = branch.applied[static_cast<size_t>(at)].parent) {
    const Applied& one = branch.applied[static_cast<size_t>(at)];
    if (!one.negated && (one.schema->find("unevaluatedProperties") || one.schema->find("unevaluatedItems")))
      return true;
    if (!one.feeds) return false;
  }
  return false;
}

}  // namespace fidelio::grammar
