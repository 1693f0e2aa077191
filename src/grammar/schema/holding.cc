// This file decides whether a value meets schemas, and whether any value can.
#include <algorithm>

#include "core/error.h"
#include "grammar/schema/expansion.h"
#include "grammar/schema/values.h"
#include "grammar/string_formats.h"

namespace fidelio::grammar {
namespace {

int64_t code_points(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

bool is_one_of(const std::vector<const Json*>& all, const Json& value) {
  return std::any_of(all.begin(), all.end(), [&](const Json* one) { return is_same(*one, value); });
}

}  // namespace

bool Expansion::holds(const Terms& terms, const Json& value) {
  const Terms all = normalised(terms);
  if (all.empty()) return true;
  for (const Branch& branch : kept_branches(all))
    if (holds_branch(branch, value)) return true;
  return false;
}

bool Expansion::holds_branch(const Branch& branch, const Json& value) {
  meter_.work(4);
  if ((branch.kinds & kind_of(value)) == 0 || is_one_of(branch.unwanted, value)) return false;
  if (branch.constants && !is_one_of(*branch.constants, value)) return false;
  if (value.is_number()) return holds_number(branch.number, value);
  if (value.is_string()) return holds_string(branch.string, value.get<std::string>());
  if (value.is_array()) return holds_array(branch, value);
  return !value.is_object() || holds_object(branch, value);
}

bool Expansion::holds_number(const NumberForm& form, const Json& value) {
  const Decimal x = decimal_in(value);
  const auto steps = [&](const Decimal& unit) { return is_multiple(x, unit); };
  return form.bounds.hold(x) && std::all_of(form.steps.begin(), form.steps.end(), steps) &&
         std::none_of(form.no_steps.begin(), form.no_steps.end(), steps) &&
         std::none_of(form.unwanted.begin(), form.unwanted.end(),
                      [&](const Decimal& one) { return compared(one, x) == 0; });
}

bool Expansion::holds_string(const StringForm& form, const std::string& text) {
  const int64_t length = code_points(text);
  if (length < form.least || (form.most >= 0 && length > form.most)) return false;
  for (const auto& [pattern, negated] : form.patterns)
    if (matches(pattern, text) == negated) return false;
  for (const std::string& format : form.formats)
    if (!matches(string_format(format)->pattern, text, true)) return false;
  return std::find(form.unwanted.begin(), form.unwanted.end(), text) == form.unwanted.end();
}

bool Expansion::holds_array(const Branch& branch, const Json& value) {
  const ArrayForm& form = branch.array;
  const auto length = std::ssize(value);
  if (length < form.least || (form.most >= 0 && length > form.most)) return false;
  for (int64_t i = 0; i < length; ++i)
    if (!holds(of_item(branch, i), value[static_cast<size_t>(i)])) return false;
  for (const Contains& one : form.contains) {
    const int64_t met =
        std::count_if(value.begin(), value.end(), [&](const Json& item) { return holds({one.term}, item); });
    if (met < one.least || (one.most >= 0 && met > one.most)) return false;
  }
  meter_.work(form.unique ? value.size() * value.size() : 0);
  for (int64_t i = 0; form.unique && i < length; ++i)
    for (int64_t j = 0; j < i; ++j)
      if (is_same(value[static_cast<size_t>(i)], value[static_cast<size_t>(j)])) return false;
  return true;
}

bool Expansion::holds_object(const Branch& branch, const Json& value) {
  const ObjectForm& form = branch.object;
  const auto size = std::ssize(value);
  if (size < form.least || (form.most >= 0 && size > form.most)) return false;
  for (const std::string& name : form.required)
    if (!value.contains(name)) return false;
  for (const auto& [name, one] : value.items())
    if (form.absent.contains(name) || !holds(form.names, Json(name)) || !holds(of_property(branch, name), one))
      return false;
  return true;
}

// The search goes only a few levels deep, so it ends for schemas that refer to themselves.
bool Expansion::impossible(const Terms& terms, int depth) {
  constexpr int kDeepest = 3;
  constexpr int64_t kItems = 16;
  const Terms all = normalised(terms);
  if (all.empty()) return false;
  for (const Branch& branch : kept_branches(all)) {
    unsigned kinds = branch.kinds;
    if (!branch.constants && (kinds & kObject) != 0) {
      for (const std::string& name : branch.object.required)
        if ((kinds & kObject) != 0 && depth < kDeepest && impossible(of_property(branch, name), depth + 1))
          kinds &= ~kObject;
    }
    if (!branch.constants && (kinds & kArray) != 0) {
      for (int64_t i = 0; i < std::min(branch.array.least, kItems); ++i)
        if ((kinds & kArray) != 0 && depth < kDeepest && impossible(of_item(branch, i), depth + 1)) kinds &= ~kArray;
    }
    if (kinds != 0) return false;
  }
  return true;
}

bool Expansion::finish(Branch& b) {
  const auto drop = [&](unsigned kinds, const std::string& reason) {
    if ((b.kinds & kinds) == 0) return;
    b.kinds &= ~kinds;
    reason_ = reason;
  };
  for (const Json* one : b.unwanted) {
    if (one->is_number()) b.number.unwanted.push_back(decimal_in(*one));
    if (one->is_string()) b.string.unwanted.push_back(one->get<std::string>());
    if (one->is_null() || one->is_boolean()) drop(kind_of(*one), "no value at all fits");
  }
  if (b.number.bounds.empty(false)) drop(kFraction, "no number is within the bounds");
  if (b.number.bounds.empty(true))
    drop(kInteger, b.kinds & kFraction ? "no value at all fits" : "no integer is within the bounds");
  if (b.string.most >= 0 && b.string.least > b.string.most) drop(kString, "minLength exceeds maxLength");
  if (b.array.most >= 0 && b.array.least > b.array.most) drop(kArray, "minItems exceeds what is allowed");
  if (b.object.most >= 0 && b.object.least > b.object.most) drop(kObject, "minProperties exceeds what is allowed");
  return b.constants ? finish_constants(b) : b.kinds != 0;
}

bool Expansion::finish_constants(Branch& branch) {
  std::vector<const Json*> all;
  all.swap(*branch.constants);
  branch.constants.reset();
  std::vector<const Json*> left;
  unsigned kinds = 0;
  for (const Json* one : all)
    if (holds_branch(branch, *one)) left.push_back(one), kinds |= kind_of(*one);
  branch.constants = std::move(left);
  branch.kinds = kinds;
  if (kinds == 0) reason_ = "no constant or value of enum has the type, or meets what else is asked for";
  return kinds != 0;
}

// A signature holds the evident facts about a schema: the kinds of its values, the values themselves where they are
// listed, and the listed values of properties that an object of it must have.
struct Expansion::Signature {
  unsigned kinds = kEvery;
  std::optional<std::set<std::string>> constants{};
  std::map<std::string, std::set<std::string>> tags{};
};

const Expansion::Signature& Expansion::signature(const Schema& given) {
  const Schema& schema = document_.settled(given);
  auto& one = signatures_[&schema];
  if (one != nullptr) return *one;
  one = std::make_shared<Signature>();
  const auto listed_in = [&](const Schema& of) -> std::optional<std::set<std::string>> {
    const Json *constant = of.find("const"), *all = of.find("enum");
    if (constant == nullptr && (all == nullptr || !all->is_array())) return std::nullopt;
    std::set<std::string> values;
    for (const Json& value : constant ? Json::array({*constant}) : *all) {
      if (value.is_structured()) return std::nullopt;
      const Decimal d = value.is_number() ? decimal_in(value) : Decimal{};
      values.insert(value.is_number() ? fmt::format("{}{} {}", d.negative ? '-' : '+', d.digits, d.before)
                                      : written(value));
    }
    meter_.work(4 * values.size());
    return values;
  };
  if (const Json* type = schema.find("type")) one->kinds = kinds_of_type(schema, *type);
  one->constants = listed_in(schema);
  const Json* required = schema.find("required");
  if (required != nullptr && required->is_array())
    for (const Json& name : *required) {
      const Schema* property = name.is_string() ? document_.property(schema, name.get<std::string>()) : nullptr;
      auto values = property ? listed_in(document_.settled(*property)) : std::nullopt;
      if (values) one->tags[name.get<std::string>()] = std::move(*values);
    }
  return *one;
}

bool Expansion::exclusive(const Schema& first, const Schema& second, bool looks_inside) {
  constexpr uint64_t kPair = 8;
  const Signature &a = signature(first), &b = signature(second);
  const auto disjoint = [&](const std::set<std::string>& x, const std::set<std::string>& y) {
    meter_.work(1 + std::min(x.size(), y.size()));
    const auto& [few, many] = x.size() < y.size() ? std::tie(x, y) : std::tie(y, x);
    return std::none_of(few.begin(), few.end(), [&, &in = many](const std::string& one) { return in.contains(one); });
  };
  meter_.work(kPair);
  const unsigned common = a.kinds & b.kinds;
  if (common == 0 || (a.constants && b.constants && disjoint(*a.constants, *b.constants))) return true;
  if (common == kObject)
    for (const auto& [name, values] : a.tags)
      if (const auto other = b.tags.find(name); other != b.tags.end() && disjoint(values, other->second)) return true;
  return looks_inside && impossible({{&first}, {&second}});
}

}  // namespace fidelio::grammar
