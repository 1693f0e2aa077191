// This is the slow twin of the grammar of JSON Schema: it checks a value keyword by keyword, as the specification
// (draft 2020-12) defines it.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "grammar/schema/test_validator.h"

namespace fidelio::grammar {
namespace {

class TestValidator {
 public:
  using Json = nlohmann::ordered_json;
  explicit TestValidator(const Json& root) : root_(root) {}
  bool valid(const Json& value) const {
    Seen seen;
    return meets(root_, value, seen);
  }

 private:
  struct Seen {  // It holds the properties and items that were evaluated.
    std::set<std::string> names{};
    std::set<size_t> items{};
    void add(const Seen& more) {
      names.insert(more.names.begin(), more.names.end()), items.insert(more.items.begin(), more.items.end());
    }
  };

  static bool same(const Json& a, const Json& b) {
    if (a.is_number() && b.is_number()) return number(a) == number(b);
    if (!a.is_structured() || a.type() != b.type()) return a == b;
    if (a.size() != b.size()) return false;
    if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), same);
    for (const auto& [name, one] : a.items())
      if (!b.contains(name) || !same(one, b[name])) return false;
    return true;
  }
  static long double number(const Json& x) {  // It keeps the digits of 64-bit integers.
    return x.is_number_unsigned()  ? static_cast<long double>(x.get<uint64_t>())
           : x.is_number_integer() ? static_cast<long double>(x.get<int64_t>())
                                   : static_cast<long double>(x.get<double>());
  }
  static bool is(const Json& value, const std::string& type) {
    if (type == "integer") return value.is_number() && number(value) == std::floor(number(value));
    return type == "null"      ? value.is_null()
           : type == "boolean" ? value.is_boolean()
           : type == "number"  ? value.is_number()
           : type == "string"  ? value.is_string()
           : type == "array"   ? value.is_array()
                               : value.is_object();
  }
  static bool matches(const std::string& text, const std::string& pattern) {
    return std::regex_search(text, std::regex(pattern, std::regex::ECMAScript));
  }

  const Json* anchored(const Json& in, const std::string& name) const {
    if (in.is_object() && in.value("$anchor", "") == name) return &in;
    if (in.is_structured())
      for (const Json& one : in)
        if (const Json* found = anchored(one, name)) return found;
    return nullptr;
  }
  const Json& target(const std::string& reference) const {
    const std::string name = reference.substr(1);
    return name.empty() || name[0] == '/' ? root_.at(Json::json_pointer(name)) : *anchored(root_, name);
  }

  bool meets(const Json& schema, const Json& value, Seen& seen) const {
    if (schema.is_boolean()) return schema.get<bool>();
    Seen own;
    if (!meets_plain(schema, value) || !meets_together(schema, value, own)) return false;
    if (value.is_object() && !meets_object(schema, value, own)) return false;
    if (value.is_array() && !meets_array(schema, value, own)) return false;
    seen.add(own);
    return true;
  }

  bool meets_plain(const Json& schema, const Json& value) const {
    const auto has = [&](const char* key) { return schema.contains(key); };
    if (has("type")) {
      bool any = false;
      for (const Json& type : schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]}))
        any = any || is(value, type.get<std::string>());
      if (!any) return false;
    }
    if (has("const") && !same(value, schema["const"])) return false;
    if (has("enum") &&
        std::none_of(schema["enum"].begin(), schema["enum"].end(), [&](const Json& one) { return same(one, value); }))
      return false;
    if (value.is_number()) {
      const long double x = number(value);
      if (has("minimum") && x < number(schema["minimum"])) return false;
      if (has("maximum") && x > number(schema["maximum"])) return false;
      if (has("exclusiveMinimum") && x <= number(schema["exclusiveMinimum"])) return false;
      if (has("exclusiveMaximum") && x >= number(schema["exclusiveMaximum"])) return false;
      if (has("multipleOf")) {
        const long double unit = number(schema["multipleOf"]), times = x / unit;
        // A fraction, its unit and their quotient are each off by half a unit in the last place of a double.
        if (unit == std::floor(unit) ? std::fmod(x, unit) != 0
                                     : std::abs(times - std::round(times)) > std::abs(times) * 3 * 0x1p-53L)
          return false;
      }
    }
    if (value.is_string()) {
      const auto text = value.get<std::string>();
      const auto length = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
      if (static_cast<double>(length) < schema.value("minLength", 0.0)) return false;
      if (static_cast<double>(length) > schema.value("maxLength", 1e9)) return false;
      if (has("pattern") && !matches(text, schema["pattern"].get<std::string>())) return false;
    }
    return true;
  }

  bool meets_together(const Json& schema, const Json& value, Seen& own) const {
    const auto tried = [&](const Json& one) {
      Seen more;
      const bool met = meets(one, value, more);
      if (met) own.add(more);
      return met;
    };
    if (schema.contains("$ref") && !tried(target(schema["$ref"].get<std::string>()))) return false;
    for (const char* key : {"allOf", "anyOf", "oneOf"}) {
      if (!schema.contains(key)) continue;
      size_t met = 0;
      for (const Json& one : schema[key]) met += tried(one);
      const size_t least = key == std::string("allOf") ? schema[key].size() : 1;
      if (met < least || (key == std::string("oneOf") && met != 1)) return false;
    }
    if (schema.contains("not")) {
      Seen none;
      if (meets(schema["not"], value, none)) return false;
    }
    if (schema.contains("if")) {
      const char* next = tried(schema["if"]) ? "then" : "else";
      if (schema.contains(next) && !tried(schema[next])) return false;
    }
    if (value.is_object() && schema.contains("dependentSchemas"))
      for (const auto& [name, one] : schema["dependentSchemas"].items())
        if (value.contains(name) && !tried(one)) return false;
    return true;
  }

  bool meets_object(const Json& schema, const Json& value, Seen& own) const {
    const auto size = static_cast<double>(value.size());
    if (size < schema.value("minProperties", 0.0) || size > schema.value("maxProperties", 1e9)) return false;
    for (const Json& name : schema.value("required", Json::array()))
      if (!value.contains(name.get<std::string>())) return false;
    const Json depending = schema.value("dependentRequired", Json::object());
    for (const auto& [name, others] : depending.items())
      for (const Json& other : others)
        if (value.contains(name) && !value.contains(other.get<std::string>())) return false;
    const Json properties = schema.value("properties", Json::object()),
               patterns = schema.value("patternProperties", Json::object());
    std::set<std::string> named;
    Seen none;
    for (const auto& [name, one] : value.items()) {
      if (schema.contains("propertyNames") && !meets(schema["propertyNames"], Json(name), none)) return false;
      if (properties.contains(name)) {
        named.insert(name);
        if (!meets(properties[name], one, none)) return false;
      }
      for (const auto& [pattern, asked] : patterns.items()) {
        if (!matches(name, pattern)) continue;
        named.insert(name);
        if (!meets(asked, one, none)) return false;
      }
    }
    own.names.insert(named.begin(), named.end());
    if (schema.contains("additionalProperties") && !meets_others(schema["additionalProperties"], value, named, own))
      return false;
    const std::set<std::string> evaluated = own.names;
    return !schema.contains("unevaluatedProperties") ||
           meets_others(schema["unevaluatedProperties"], value, evaluated, own);
  }
  bool meets_others(const Json& schema, const Json& value, const std::set<std::string>& named, Seen& own) const {
    Seen none;
    for (const auto& [name, one] : value.items()) {
      if (named.contains(name)) continue;
      if (!meets(schema, one, none)) return false;
      own.names.insert(name);
    }
    return true;
  }

  bool meets_array(const Json& schema, const Json& value, Seen& own) const {
    const auto size = static_cast<double>(value.size());
    if (size < schema.value("minItems", 0.0) || size > schema.value("maxItems", 1e9)) return false;
    const Json prefix = schema.value("prefixItems", Json::array());
    Seen none;
    size_t contained = 0;
    for (size_t i = 0; i < value.size(); ++i) {
      const bool fixed = i < prefix.size();
      if (fixed || schema.contains("items")) {
        if (!meets(fixed ? prefix[i] : schema["items"], value[i], none)) return false;
        own.items.insert(i);
      }
      if (schema.value("uniqueItems", false))
        for (size_t j = 0; j < i; ++j)
          if (same(value[i], value[j])) return false;
      if (schema.contains("contains") && meets(schema["contains"], value[i], none)) ++contained, own.items.insert(i);
    }
    if (schema.contains("contains") && (static_cast<double>(contained) < schema.value("minContains", 1.0) ||
                                        static_cast<double>(contained) > schema.value("maxContains", 1e9)))
      return false;
    for (size_t i = 0; i < value.size() && schema.contains("unevaluatedItems"); ++i) {
      if (own.items.contains(i)) continue;
      if (!meets(schema["unevaluatedItems"], value[i], none)) return false;
      own.items.insert(i);
    }
    return true;
  }

  const Json& root_;
};

}  // namespace

bool valid_for(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value) {
  return TestValidator(schema).valid(value);
}

}  // namespace fidelio::grammar
