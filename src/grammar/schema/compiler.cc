#include "grammar/schema/compiler.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "grammar/meet.h"
#include "grammar/regex.h"
#include "grammar/schema/values.h"
#include "grammar/string_formats.h"

namespace fidelio::grammar {
namespace {

constexpr uint64_t kRuleWork = 20;
constexpr const char* kNoText = "no text at all fits all that is asked of it";

}  // namespace

Grammar SchemaCompiler::compile() {
  const RuleId start = grammar_.add_rule();
  add_common();
  const Terms root = expansion_.normalised({{&document_.root()}});
  rules_[root] = start;
  left_.emplace_back(start, root);
  while (!left_.empty()) {
    const auto [rule, terms] = left_.back();
    left_.pop_back();
    grammar_.meter().work(kRuleWork);
    grammar_.define(rule, body(terms));
  }
  check(grammar_.prune(), "no text at all fits: {}",
        last_reason_.empty() ? "a value would have to hold others without end" : last_reason_);
  return std::move(grammar_);
}

Fragment SchemaCompiler::row(std::initializer_list<Fragment> parts) {
  Fragment all = grammar_.empty();
  for (const Fragment& part : parts) all = grammar_.sequence(all, part);
  return all;
}

RuleId SchemaCompiler::rule_of(Fragment body) {
  const RuleId rule = grammar_.add_rule();
  grammar_.define(rule, body);
  return rule;
}

RuleId SchemaCompiler::rule_of(const Terms& terms) {
  if (terms.empty()) return any_;
  const auto [found, fresh] = rules_.try_emplace(terms, 0);
  if (!fresh) return found->second;
  grammar_.meter().memory(128 + terms.size() * 2 * sizeof(Term));
  found->second = grammar_.add_rule();
  left_.emplace_back(found->second, terms);
  return found->second;
}

void SchemaCompiler::add_common() {
  Grammar& g = grammar_;
  for (RuleId* rule : {&any_, &string_, &character_, &blank_, &comma_, &object_, &array_, &any_member_})
    *rule = g.add_rule();
  const auto indent = g.repeat([&] { return text(" "); }, 0, 16);
  g.define(blank_, g.choice({text(" "), row({text("\n"), indent})}));
  g.define(comma_, row({text(","), space()}));
  g.define(character_, string_character(g));
  g.define(string_, row({text("\""), g.star(g.call(character_)), text("\"")}));
  const auto value = [&] { return g.call(any_); };
  const auto member = [&] { return row({g.call(string_), text(":"), space(), value()}); };
  const auto list = [&](auto&& one) { return g.optional(row({one(), g.star(row({g.call(comma_), one()})), space()})); };
  g.define(any_member_, member());
  g.define(object_, row({text("{"), space(), list(member), text("}")}));
  g.define(array_, row({text("["), space(), list(value), text("]")}));
  g.define(any_, g.choice({g.call(object_), g.call(array_), g.call(string_), any_number(g), text("true"), text("false"),
                           text("null")}));
}

// A schema that somebody wrote and that no value meets is most likely a mistake, and is refused. A combination of
// several that no value meets may be intended, and the grammar is pruned of it.
Fragment SchemaCompiler::body(const Terms& terms) {
  if (terms.empty()) return grammar_.call(any_);
  where_ = terms[0].schema->where();
  std::vector<Fragment> all;
  reason_.clear();
  const std::vector<Branch> branches = expansion_.branches(terms);
  const auto meant = [](const Branch& b) { return b.typed || b.suggested == 0 || (b.suggested & b.kinds) != 0; };
  // Branches whose keywords are about other types are left out where better ones exist.
  const bool any_meant = std::any_of(branches.begin(), branches.end(), meant);
  for (const Branch& branch : branches)
    if (meant(branch) || !any_meant) add(branch, all);
  if (!all.empty()) return all.size() == 1 ? all[0] : grammar_.choice(all);
  if (reason_.empty()) reason_ = expansion_.reason();
  if (terms.size() == 1 && !terms[0].negated && !terms[0].schema->is(false)) refuse(where_, reason_);
  last_reason_ = reason_;
  return grammar_.nothing();
}

// If no type is given, it is taken from the keywords.
void SchemaCompiler::add(const Branch& branch, std::vector<Fragment>& all) {
  unsigned kinds = branch.kinds;
  if (branch.constants) {
    for (const Json* one : *branch.constants) all.push_back(text(written(*one)));
    return;
  }
  if (!branch.typed)
    for (const unsigned group : {kObject + 0U, kArray + 0U, kString + 0U, kNumber + 0U})
      if ((branch.suggested & kinds & group) != 0) {
        kinds &= group;
        break;
      }
  if (kinds == kEvery && branch.suggested == 0 && branch.unwanted.empty()) return all.push_back(grammar_.call(any_));
  for (const auto& [kind, literal] : {std::pair{kNull, "null"}, {kTrue, "true"}, {kFalse, "false"}})
    if ((kinds & kind) != 0) all.push_back(text(literal));
  const auto keep = [&](const std::optional<Fragment>& one) {
    if (one) all.push_back(*one);
  };
  for (const Json* one : branch.unwanted) {
    if (!one->is_structured() || (kinds & kind_of(*one)) == 0) continue;
    Branch others = branch;
    others.unwanted.clear();
    if (expansion_.holds_branch(others, *one))
      refuse(where_, "an object or array that an answer must not be cannot be imposed");
  }
  if ((kinds & kNumber) != 0) keep(number(branch.number, kinds & kNumber));
  if ((kinds & kString) != 0) keep(string(branch.string));
  if ((kinds & kArray) != 0) keep(array(branch));
  if ((kinds & kObject) != 0) keep(object(branch));
}

std::optional<Fragment> SchemaCompiler::number(const NumberForm& form, unsigned kinds) {
  if (form.bounds.none() && form.steps.empty() && form.no_steps.empty() && form.unwanted.empty() && kinds != kFraction)
    return kinds == kInteger ? any_integer(grammar_) : any_number(grammar_);
  std::vector<Fragment> all;
  try {
    for (const Bounds& bounds : form.bounds.without(form.unwanted)) {
      if (bounds.empty(kinds == kInteger)) continue;
      if (const auto within = number_within(bounds, form, kinds)) all.push_back(*within);
    }
  } catch (const Error& e) {
    refuse(where_, e.what());
  }
  if (!all.empty()) return grammar_.choice(all);
  reason_ = kNoText;
  return std::nullopt;
}

std::optional<Fragment> SchemaCompiler::number_within(const Bounds& bounds, const NumberForm& form, unsigned kinds) {
  const bool integer = kinds == kInteger;
  std::optional<Fragment> all = integer ? bounded_integer(grammar_, bounds) : bounded_number(grammar_, bounds);
  for (const Decimal& unit : form.steps)
    if (const auto steps = multiples(grammar_, unit, integer); steps && all)
      all = meet(grammar_, *all, *steps, Meet::both);
  for (const Decimal& unit : form.no_steps) {
    const auto steps = multiples(grammar_, unit, integer);
    if (!steps) return std::nullopt;  // Every integer is a multiple.
    if (all) all = meet(grammar_, *all, *steps, Meet::without);
  }
  if (kinds == kFraction && all && !bounds.empty(true))
    all = meet(grammar_, *all, *multiples(grammar_, decimal_of("1"), false), Meet::without);
  return all;
}

std::optional<Fragment> SchemaCompiler::string(const StringForm& form) {
  if (form.plain()) return grammar_.call(string_);
  const auto inside = inside_of(form);
  if (!inside) return std::nullopt;
  return row({text("\""), *inside, text("\"")});
}

// If several keywords restrict a string, it must meet all of them at once.
std::optional<Fragment> SchemaCompiler::inside_of(const StringForm& form) {
  Grammar& g = grammar_;
  const bool counted = form.least > 0 || form.most >= 0;
  const bool matched = std::any_of(form.patterns.begin(), form.patterns.end(), [](const auto& p) { return !p.second; });
  const bool negated = !form.unwanted.empty() ||
                       std::any_of(form.patterns.begin(), form.patterns.end(), [](const auto& p) { return p.second; });
  // Every character is written in one way only where texts are compared.
  const auto character = [&] { return one_of(g, every_character(), Writing::json_string); };
  try {
    std::vector<std::pair<Fragment, Meet>> all;
    for (const auto& [pattern, not_met] : form.patterns)
      if (!not_met) all.emplace_back(add_regex(g, pattern, Match::part, Writing::json_string), Meet::both);
    for (const std::string& name : form.formats) {
      const StringFormat* format = string_format(name);
      if ((matched || counted) && format->gives_way) continue;
      all.emplace_back(add_regex(g, format->pattern, Match::whole, Writing::json_string), Meet::both);
    }
    if (counted && all.empty() && !negated) return g.repeat([&] { return g.call(character_); }, form.least, form.most);
    if (counted)
      all.emplace_back(g.repeat(character, form.least, form.most), Meet::both);
    else if (negated)
      all.emplace_back(g.star(character()), Meet::both);
    for (const auto& [pattern, not_met] : form.patterns)
      if (not_met) all.emplace_back(add_regex(g, pattern, Match::part, Writing::json_string), Meet::without);
    if (!form.unwanted.empty()) {
      std::vector<Fragment> texts;
      for (const std::string& one : form.unwanted) {
        const std::string quoted = written(Json(one));
        texts.push_back(text(std::string_view(quoted).substr(1, quoted.size() - 2)));
      }
      all.emplace_back(g.choice(texts), Meet::without);
    }
    if (all.empty()) return g.star(g.call(character_));  // A format gave way to another keyword.
    std::optional<Fragment> inside = all[0].first;
    for (size_t i = 1; i < all.size() && inside; ++i) inside = meet(g, *inside, all[i].first, all[i].second);
    if (!inside) reason_ = kNoText;
    return inside;
  } catch (const Error& e) {
    refuse(where_, e.what());
  }
}

bool SchemaCompiler::is_nothing(const Terms& terms) {
  if (terms.size() == 1) return terms[0].schema->is(false) && !terms[0].negated;
  return !terms.empty() && expansion_.kept_branches(terms).empty();
}

}  // namespace fidelio::grammar
