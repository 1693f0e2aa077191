// This file applies the keywords that are about values of one type.
#include <algorithm>

#include "grammar/schema/expansion.h"
#include "grammar/schema/values.h"
#include "grammar/string_formats.h"

namespace fidelio::grammar {

unsigned kinds_of_type(const Schema& schema, const Json& type) {
  static const std::map<std::string, unsigned> all = {{"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger},
                                                      {"number", kNumber}, {"string", kString},   {"array", kArray},
                                                      {"object", kObject}};
  unsigned kinds = 0;
  for (const Json& one : type.is_array() ? type : Json::array({type})) {
    if (!one.is_string()) refuse(schema.where(), "type is not a name or a list of names");
    const auto found = all.find(one.get<std::string>());
    if (found == all.end()) refuse(schema.where(), "there is no type \"" + one.get<std::string>() + "\"");
    kinds |= found->second;
  }
  if (kinds == 0) refuse(schema.where(), "type is an empty list");
  return kinds;
}

void Expansion::apply_typed(Open& open, const Schema& schema, const std::string& key, const Json& value) {
  if (key == "type") return restrict_to(open, kinds_of_type(schema, value));
  if (apply_object(open, schema, key, value))
    open.branch.suggested |= kObject;
  else if (apply_array(open, schema, key, value))
    open.branch.suggested |= kArray;
  else if (apply_string(open, schema, key, value))
    open.branch.suggested |= kString;
  else if (apply_number(open, schema, key, value))
    open.branch.suggested |= kNumber;
}

// Applies a keyword about objects. Keywords about single properties and items take effect where the terms of these are
// computed.
bool Expansion::apply_object(Open& open, const Schema& schema, const std::string& key, const Json& value) {
  ObjectForm& object = open.branch.object;
  if (key == "properties" || key == "patternProperties") {
    if (!value.is_object()) refuse(schema.where(), key + " is not an object");
  } else if (key == "additionalProperties" || key == "unevaluatedProperties") {
    document_.at(schema, value);
  } else if (key == "required") {
    for (const std::string& name : names_in(schema, key, value)) require(open, name);
  } else if (key == "minProperties") {
    object.least = std::max(object.least, count_of(schema, key, value));
  } else if (key == "maxProperties") {
    const int64_t most = count_of(schema, key, value);
    object.most = object.most < 0 ? most : std::min(object.most, most);
  } else if (key == "propertyNames") {
    object.names.push_back({&document_.at(schema, value)});
  } else {
    return false;
  }
  return true;
}

bool Expansion::apply_array(Open& open, const Schema& schema, const std::string& key, const Json& value) {
  ArrayForm& array = open.branch.array;
  if (key == "items" || key == "unevaluatedItems") {
    if (value.is_array()) refuse(schema.where(), "items is a list, as in older drafts: say prefixItems");
    document_.at(schema, value);
  } else if (key == "prefixItems") {
    listed(schema, key, value);
  } else if (key == "minItems") {
    array.least = std::max(array.least, count_of(schema, key, value));
  } else if (key == "maxItems") {
    const int64_t most = count_of(schema, key, value);
    array.most = array.most < 0 ? most : std::min(array.most, most);
  } else if (key == "uniqueItems") {
    array.unique = array.unique || value == Json(true);
    return array.unique;
  } else if (key == "contains") {
    const Json *least = schema.find("minContains"), *most = schema.find("maxContains");
    const Contains one{{&document_.at(schema, value)},
                       least ? count_of(schema, "minContains", *least) : 1,
                       most ? count_of(schema, "maxContains", *most) : -1};
    if (one.least > 0 || one.most >= 0) array.contains.push_back(one);
  } else {
    return false;
  }
  return true;
}

bool Expansion::apply_string(Open& open, const Schema& schema, const std::string& key, const Json& value) {
  StringForm& string = open.branch.string;
  if (key == "minLength") {
    string.least = std::max(string.least, count_of(schema, key, value));
  } else if (key == "maxLength") {
    const int64_t most = count_of(schema, key, value);
    string.most = string.most < 0 ? most : std::min(string.most, most);
  } else if (key == "pattern") {
    if (!value.is_string()) refuse(schema.where(), "pattern is no string");
    const std::pair<std::string, bool> pattern{value.get<std::string>(), false};
    if (std::find(string.patterns.begin(), string.patterns.end(), pattern) == string.patterns.end())
      string.patterns.push_back(pattern);
  } else if (key == "format") {
    if (!value.is_string()) refuse(schema.where(), "format is no string");
    const auto name = value.get<std::string>();
    if (string_format(name) != nullptr &&
        std::find(string.formats.begin(), string.formats.end(), name) == string.formats.end())
      string.formats.push_back(name);
  } else {
    return false;
  }
  return true;
}

bool Expansion::apply_number(Open& open, const Schema& schema, const std::string& key, const Json& value) {
  NumberForm& number = open.branch.number;
  if (key == "minimum" || key == "exclusiveMinimum") {
    number.bounds.raise(bound_of(schema, key, value, true, key != "minimum"));
  } else if (key == "maximum" || key == "exclusiveMaximum") {
    number.bounds.lower(bound_of(schema, key, value, false, key != "maximum"));
  } else if (key == "multipleOf") {
    if (!value.is_number() || !keeps_digits(value) || value.get<double>() <= 0)
      refuse(schema.where(), "multipleOf is not a number above 0 and below 2^63");
    number.steps.push_back(decimal_in(value));
  } else {
    return false;
  }
  return true;
}

}  // namespace fidelio::grammar
