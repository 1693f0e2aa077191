// This file finds the ways in which a schema is not met. They are needed for not, for else, and for the cases of a
// oneOf other than the one that is met.
#include <algorithm>

#include "grammar/schema/expansion.h"
#include "grammar/schema/values.h"

namespace fidelio::grammar {
namespace {

[[noreturn]] void cannot_negate(const Schema& schema, const std::string& key) {
  refuse(schema.where(),
         "\"" + key +
             "\" cannot be imposed where an answer must not meet it: in not, in if, or in a oneOf of cases "
             "that it may meet together");
}

}  // namespace

void Expansion::apply_negated(Open& open, const Schema& schema, int self) {
  if (!schema.any.empty()) {
    Terms none;
    for (const Schema* one : schema.any) none.push_back({one, true});
    return meeting(self, none, false)(open);
  }
  if (schema.is(true)) return kill(open, "no value at all fits");
  if (schema.is(false)) return;
  if (!schema.json->is_object()) refuse(schema.where(), "expected a schema: an object, true or false");
  Ways ways;
  for (const auto& [key, value] : schema.json->items()) {
    meter_.work(2);
    negate_logic(schema, self, key, value, ways) || negate_plain(schema, key, value, ways) ||
        negate_object(schema, key, value, ways) || negate_array(schema, key, value, ways);
  }
  choose(open, std::move(ways), kEvery);
}

bool Expansion::negate_logic(const Schema& schema, int self, const std::string& key, const Json& value, Ways& ways) {
  const auto add = [&](Terms terms) { ways.push_back(meeting(self, std::move(terms), false)); };
  if (key == "$ref" || key == "$dynamicRef") {
    add({{&document_.target(schema, key, value), true}});
  } else if (key == "$recursiveRef") {
    cannot_negate(schema, key);
  } else if (key == "allOf") {
    for (const Schema* one : listed(schema, key, value)) add({{one, true}});
  } else if (key == "anyOf" || key == "oneOf") {
    const auto cases = listed(schema, key, value);
    Terms none;
    for (const Schema* one : cases) none.push_back({one, true});
    add(none);
    if (key == "oneOf") {
      constexpr uint64_t kPairOfCases = 200;  // This is in bytes.
      meter_.work(cases.size() * cases.size());
      meter_.memory(cases.size() * cases.size() / 2 * kPairOfCases);
      for (size_t i = 0; i < cases.size(); ++i)
        for (size_t j = 0; j < i; ++j) add({{cases[i]}, {cases[j]}});
    }
  } else if (key == "not") {
    add({{&document_.at(schema, value)}});
  } else if (key == "if") {
    const Schema& when = document_.at(schema, value);
    if (const Json* then = schema.find("then")) add({{&when}, {&document_.at(schema, *then), true}});
    if (const Json* otherwise = schema.find("else")) add({{&when, true}, {&document_.at(schema, *otherwise), true}});
  } else {
    return negate_dependencies(schema, self, key, value, ways);
  }
  return true;
}

bool Expansion::negate_dependencies(const Schema& schema, int self, const std::string& key, const Json& value,
                                    Ways& ways) {
  if (key == "dependencies") cannot_negate(schema, key);
  if (key != "dependentRequired" && key != "dependentSchemas") return false;
  if (!value.is_object()) refuse(schema.where(), key + " is not an object");
  for (const auto& [name, asked] : value.items()) {
    if (key == "dependentSchemas") {
      const Effect not_met = meeting(self, {{&document_.at(schema, asked), true}}, false);
      ways.push_back(
          [this, name = name, not_met](Open& to) { restrict_to(to, kObject), require(to, name), not_met(to); });
      continue;
    }
    for (const std::string& one : names_in(schema, key, asked))
      ways.push_back(
          [this, name = name, one](Open& to) { restrict_to(to, kObject), require(to, name), forbid(to, one); });
  }
  return true;
}

bool Expansion::negate_plain(const Schema& schema, const std::string& key, const Json& value, Ways& ways) {
  const auto number = [&](bool low, bool excluded) {
    const Bound bound = bound_of(schema, key, value, low, excluded);
    ways.push_back([this, bound, low](Open& to) {
      restrict_to(to, kNumber);
      Bounds& bounds = to.branch.number.bounds;
      low ? bounds.raise(bound) : bounds.lower(bound);
    });
  };
  if (key == "type") {
    const unsigned kinds = kEvery & ~kinds_of_type(schema, value);
    ways.push_back([this, kinds](Open& to) { to.branch.kinds &= kinds; });
  } else if (key == "const" || key == "enum") {
    if (key == "enum" && !value.is_array()) refuse(schema.where(), "enum is not a list of values");
    if (!keeps_digits(value)) cannot_negate(schema, key + " of a number beyond 64 bits");
    ways.push_back([&value, is_const = key == "const"](Open& to) {
      if (is_const) return to.branch.unwanted.push_back(&value);
      for (const Json& one : value) to.branch.unwanted.push_back(&one);
    });
  } else if (key == "minimum" || key == "exclusiveMinimum") {
    number(false, key == "minimum");
  } else if (key == "maximum" || key == "exclusiveMaximum") {
    number(true, key == "maximum");
  } else if (key == "multipleOf") {
    if (!value.is_number() || !keeps_digits(value) || value.get<double>() <= 0)
      refuse(schema.where(), "multipleOf is not a number above 0 and below 2^63");
    ways.push_back([this, unit = decimal_in(value)](Open& to) {
      restrict_to(to, kNumber), to.branch.number.no_steps.push_back(unit);
    });
  } else if (key == "pattern") {
    if (!value.is_string()) refuse(schema.where(), "pattern is no string");
    ways.push_back([this, pattern = value.get<std::string>()](Open& to) {
      restrict_to(to, kString), to.branch.string.patterns.emplace_back(pattern, true);
    });
  } else if (key == "minLength" || key == "minItems" || key == "minProperties" || key == "maxLength" ||
             key == "maxItems" || key == "maxProperties") {
    const int64_t count = count_of(schema, key, value);
    const bool least = key.starts_with("min");
    const unsigned kind = key.ends_with("Length") ? kString : key.ends_with("Items") ? kArray : kObject;
    if (least && count == 0) return true;
    ways.push_back([this, count, least, kind](Open& to) {
      restrict_to(to, kind);
      Branch& b = to.branch;
      int64_t& low = kind == kString ? b.string.least : kind == kArray ? b.array.least : b.object.least;
      int64_t& high = kind == kString ? b.string.most : kind == kArray ? b.array.most : b.object.most;
      if (least)
        high = high < 0 ? count - 1 : std::min(high, count - 1);
      else
        low = std::max(low, count + 1);
    });
  } else {
    // format may be read as an annotation or as a condition. No way is added for it, so an answer is valid under both
    // readings.
    return key == "format";
  }
  return true;
}

bool Expansion::negate_object(const Schema& schema, const std::string& key, const Json& value, Ways& ways) {
  const auto outside = [&](Outside one) {
    if (document_.is_trivial(*one.term.schema)) return;
    ways.push_back([this, one](Open& to) { restrict_to(to, kObject), to.branch.object.outside.push_back(one); });
  };
  if (key == "required") {
    for (const std::string& name : names_in(schema, key, value))
      ways.push_back([this, name](Open& to) { restrict_to(to, kObject), forbid(to, name); });
  } else if (key == "properties") {
    if (!value.is_object()) refuse(schema.where(), "properties is not an object");
    for (const auto& [name, one] : value.items()) {
      const Schema& property = document_.at(schema, one);
      if (document_.is_trivial(property)) continue;
      ways.push_back([this, name = name, &property](Open& to) {
        restrict_to(to, kObject), require(to, name);
        to.branch.object.also.emplace_back(name, Term{&property, true});
      });
    }
  } else if (key == "additionalProperties") {
    outside({&schema, {&document_.at(schema, value), true}, Outside::Of::additional});
  } else if (key == "patternProperties") {
    if (!value.is_object()) refuse(schema.where(), "patternProperties is not an object");
    for (const auto& [pattern, one] : value.items())
      outside({&schema, {&document_.at(schema, one), true}, Outside::Of::matched, pattern});
  } else if (key == "propertyNames") {
    outside({&schema, {&document_.at(schema, value), true}, Outside::Of::names});
  } else if (key.starts_with("unevaluated")) {
    if (!document_.is_trivial(document_.at(schema, value))) cannot_negate(schema, key);
  } else {
    return false;
  }
  return true;
}

bool Expansion::negate_array(const Schema& schema, const std::string& key, const Json& value, Ways& ways) {
  const auto contains = [&](Term term, int64_t least, int64_t most) {
    ways.push_back([this, one = Contains{term, least, most}](Open& to) {
      restrict_to(to, kArray), to.branch.array.contains.push_back(one);
    });
  };
  if (key == "items") {
    if (value.is_array()) refuse(schema.where(), "items is a list, as in older drafts: say prefixItems");
    const Schema& items = document_.at(schema, value);
    const Json* prefix = schema.find("prefixItems");
    if (document_.is_trivial(items)) return true;
    if (prefix != nullptr && !items.is(false)) cannot_negate(schema, "items beside prefixItems");
    if (prefix == nullptr) {
      contains({&items, true}, 1, -1);
    } else {
      ways.push_back([this, length = std::ssize(*prefix) + 1](Open& to) {
        restrict_to(to, kArray), to.branch.array.least = std::max(to.branch.array.least, length);
      });
    }
  } else if (key == "prefixItems") {
    const auto all = listed(schema, key, value);
    for (size_t i = 0; i < all.size(); ++i) {
      if (document_.is_trivial(*all[i])) continue;
      ways.push_back([this, at = static_cast<int64_t>(i), term = Term{all[i], true}](Open& to) {
        restrict_to(to, kArray);
        to.branch.array.least = std::max(to.branch.array.least, at + 1);
        to.branch.array.also.emplace_back(at, term);
      });
    }
  } else if (key == "contains") {
    const Json *least = schema.find("minContains"), *most = schema.find("maxContains");
    const int64_t low = least ? count_of(schema, "minContains", *least) : 1;
    const Term term{&document_.at(schema, value)};
    if (low > 0) contains(term, 0, low - 1);
    if (most != nullptr) contains(term, count_of(schema, "maxContains", *most) + 1, -1);
  } else if (key == "uniqueItems") {
    if (value == Json(true)) cannot_negate(schema, key);
  } else {
    return false;
  }
  return true;
}

void Expansion::choose_outside(Open& open) {
  const Outside outside = open.branch.object.outside.back();
  open.branch.object.outside.pop_back();
  Ways ways;
  for (const std::string& name : names(open.branch)) {
    bool is_meant = false;
    if (outside.kind == Outside::Of::names) {
      is_meant = holds({outside.term}, Json(name));
    } else if (outside.kind == Outside::Of::matched) {
      is_meant = matches(outside.pattern, name);
    } else {
      is_meant = document_.property(*outside.of, name) == nullptr;
      if (const Json* patterns = outside.of->find("patternProperties"))
        for (const auto& item : patterns->items()) is_meant = is_meant && !matches(item.key(), name);
    }
    if (!is_meant) continue;
    ways.push_back([this, name, outside](Open& to) {
      require(to, name);
      if (outside.kind != Outside::Of::names) to.branch.object.also.emplace_back(name, outside.term);
    });
  }
  choose(open, std::move(ways), kEvery);
}

}  // namespace fidelio::grammar
