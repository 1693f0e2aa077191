#include "grammar/json_schema.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/error.h"
#include "grammar/meet.h"
#include "grammar/numbers.h"
#include "grammar/regex.h"
#include "grammar/schema_document.h"
#include "grammar/string_formats.h"

namespace fidelio::grammar {
namespace {

constexpr int kDeepestSchema = 64;
constexpr int64_t kMostCount = 10'000;

class Compiler {
 public:
  explicit Compiler(const Json& root) : document_(root) {}

  Grammar compile() {
    const RuleId start = grammar_.add_rule();
    any_ = grammar_.add_rule(), string_ = grammar_.add_rule(), character_ = grammar_.add_rule();
    blank_ = grammar_.add_rule(), comma_ = grammar_.add_rule(), object_ = grammar_.add_rule();
    add_common();
    grammar_.define(start, value(document_.root(), "the schema", 0));
    grammar_.check_recursion();
    return std::move(grammar_);
  }

 private:
  Fragment text(std::string_view literal) { return grammar_.literal(literal); }
  Fragment row(std::initializer_list<Fragment> parts) {
    Fragment all = grammar_.empty();
    for (const Fragment& part : parts) all = grammar_.sequence(all, part);
    return all;
  }
  Fragment space() { return grammar_.optional(grammar_.call(blank_)); }
  RuleId rule_of(Fragment body) {
    const RuleId rule = grammar_.add_rule();
    grammar_.define(rule, body);
    return rule;
  }

  void add_common() {
    Grammar& g = grammar_;
    const auto indent = g.repeat([&] { return text(" "); }, 0, 16);
    g.define(blank_, g.choice({text(" "), row({text("\n"), indent})}));
    g.define(comma_, row({text(","), space()}));
    g.define(character_, string_character(g));
    g.define(string_, row({text("\""), g.star(g.call(character_)), text("\"")}));
    const auto value = [&] { return g.call(any_); };
    g.define(object_, map_of(any_, 0, -1));
    const Fragment array = row(
        {text("["), space(), g.optional(row({value(), g.star(row({g.call(comma_), value()})), space()})), text("]")});
    g.define(any_, g.choice({g.call(object_), array, g.call(string_), any_number(g), text("true"), text("false"),
                             text("null")}));
  }

  // {"key": value, ...}
  Fragment map_of(RuleId value, int64_t least, int64_t most) {
    Grammar& g = grammar_;
    const auto member = [&] { return row({g.call(string_), text(":"), space(), g.call(value)}); };
    const auto further = [&] { return row({g.call(comma_), member()}); };
    Fragment members =
        most == 0
            ? g.empty()
            : row({member(), g.repeat(further, std::max<int64_t>(0, least - 1), most < 0 ? -1 : most - 1), space()});
    if (least == 0 && most != 0) members = g.optional(members);
    return row({text("{"), space(), members, text("}")});
  }

  // --- references -----------------------------------------------------------------------------------------------
  Fragment reference(const std::string& where, const Json& ref, int depth) {
    const Json& target = document_.resolve(where, ref);
    const auto found = references_.find(&target);
    if (found != references_.end()) return grammar_.call(found->second);
    const RuleId rule = grammar_.add_rule();
    references_[&target] = rule;
    grammar_.define(rule, value(target, ref.get<std::string>(), depth));
    return grammar_.call(rule);
  }

  Json without(const Json& schema, const char* key) const {
    Json rest = schema;
    rest.erase(key);
    return rest;
  }
  // --- schemas ----------------------------------------------------------------------------------------------------
  Fragment value(const Json& schema, const std::string& where, int depth) {
    if (depth > kDeepestSchema) refuse(where, fmt::format("nested deeper than {}", kDeepestSchema));
    if (schema.is_boolean() && schema.get<bool>()) return grammar_.call(any_);
    if (!schema.is_object()) refuse(where, "expected a schema: an object, or true");
    for (const auto& item : schema.items())
      if (!describes(item.key()) && !imposed(item.key())) {
        static const std::set<std::string> refused = {"not",
                                                      "if",
                                                      "then",
                                                      "else",
                                                      "dependentRequired",
                                                      "dependentSchemas",
                                                      "dependencies",
                                                      "contains",
                                                      "uniqueItems",
                                                      "minContains",
                                                      "maxContains",
                                                      "propertyNames",
                                                      "patternProperties",
                                                      "unevaluatedProperties",
                                                      "unevaluatedItems",
                                                      "additionalItems",
                                                      "$dynamicRef",
                                                      "$recursiveRef"};
        const bool harmless =
            item.value() == Json(false) && (item.key() == "uniqueItems" || item.key().starts_with("unevaluated"));
        if (refused.contains(item.key()) && !harmless)
          refuse(where, "\"" + item.key() + "\" cannot be imposed on an answer");
      }
    if (!says_something(schema)) return grammar_.call(any_);
    if (schema.contains("$ref")) {
      const Json rest = without(schema, "$ref");
      if (!says_something(rest)) return reference(where, schema["$ref"], depth + 1);
      return value(document_.merged(where, document_.resolve(where, schema["$ref"]), rest), where, depth + 1);
    }
    if (schema.contains("allOf")) return all_of(schema, where, depth);
    for (const char* key : {"anyOf", "oneOf"})
      if (schema.contains(key)) return any_of(schema, key, where, depth);
    if (schema.contains("const") || schema.contains("enum")) return listed(schema, where);
    return typed(schema, where, depth);
  }

  Fragment all_of(const Json& schema, const std::string& where, int depth) {
    if (!schema["allOf"].is_array() || schema["allOf"].empty()) refuse(where, "allOf is not a list of schemas");
    Json whole = without(schema, "allOf");
    std::vector<Json> parts = {whole};
    for (const Json& part : schema["allOf"]) {
      if (!part.is_object()) refuse(where, "allOf is not a list of schemas");
      parts.push_back(part.contains("$ref") && part.size() == 1 ? document_.resolve(where, part["$ref"]) : part);
      whole = document_.merged(where, whole, part);
    }
    for (const Json& part : parts) document_.check_closed(where, part, whole);
    return value(whole, where, depth + 1);
  }

  Fragment any_of(const Json& schema, const char* key, const std::string& where, int depth) {
    const Json& cases = schema[key];
    if (!cases.is_array() || cases.empty()) refuse(where, std::string(key) + " is not a list of schemas");
    if (std::string(key) == "oneOf") document_.check_exclusive(cases, where);
    const Json rest = without(schema, key);
    std::vector<Fragment> all;
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::string place = fmt::format("{}/{}/{}", where, key, i);
      if (!says_something(rest)) {
        all.push_back(value(cases[i], place, depth + 1));
        continue;
      }
      if (!cases[i].is_object()) refuse(place, "expected a schema");
      const Json whole = document_.merged(place, rest, cases[i]);
      document_.check_closed(place, rest, whole);
      document_.check_closed(place, cases[i], whole);
      all.push_back(value(whole, place, depth + 1));
    }
    return grammar_.choice(all);
  }

  Fragment listed(const Json& schema, const std::string& where) {
    for (const auto& item : schema.items())
      if (imposed(item.key()) && item.key() != "const" && item.key() != "enum" && item.key() != "type")
        refuse(where, "enum or const beside \"" + item.key() + "\"");
    const Json values = schema.contains("const") ? Json::array({schema["const"]}) : schema["enum"];
    if (!values.is_array() || values.empty()) refuse(where, "enum is not a list of values");
    const std::set<std::string> types = document_.types_of(Json{{"type", schema.value("type", Json())}});
    std::vector<Fragment> all;
    for (const Json& one : values) {
      const std::string type = type_of(one);
      if (types.empty() || types.contains(type) || (type == "integer" && types.contains("number")))
        all.push_back(text(one.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
    if (all.empty()) refuse(where, "no value of enum has the type asked for");
    return grammar_.choice(all);
  }

  Fragment typed(const Json& schema, const std::string& where, int depth) {
    std::vector<std::string> types;
    if (schema.contains("type")) {
      const Json& type = schema["type"];
      for (const Json& one : type.is_array() ? type : Json::array({type})) {
        if (!one.is_string()) refuse(where, "type is not a name or a list of names");
        types.push_back(one.get<std::string>());
      }
      if (types.empty()) refuse(where, "type is an empty list");
    } else {
      for (const auto& [key, type] : {std::pair{"properties", "object"},
                                      {"required", "object"},
                                      {"additionalProperties", "object"},
                                      {"minProperties", "object"},
                                      {"maxProperties", "object"},
                                      {"items", "array"},
                                      {"prefixItems", "array"},
                                      {"minItems", "array"},
                                      {"maxItems", "array"},
                                      {"pattern", "string"},
                                      {"minLength", "string"},
                                      {"maxLength", "string"},
                                      {"format", "string"},
                                      {"minimum", "number"},
                                      {"maximum", "number"},
                                      {"exclusiveMinimum", "number"},
                                      {"exclusiveMaximum", "number"},
                                      {"multipleOf", "number"}})
        if (schema.contains(key) && types.empty()) types.push_back(type);
    }
    std::vector<Fragment> all;
    for (const std::string& type : types) {
      if (type == "object")
        all.push_back(object(schema, where, depth));
      else if (type == "array")
        all.push_back(array(schema, where, depth));
      else if (type == "string")
        all.push_back(string(schema, where));
      else if (type == "number" || type == "integer")
        all.push_back(number(schema, where, type == "integer"));
      else if (type == "boolean")
        all.push_back(grammar_.choice({text("true"), text("false")}));
      else if (type == "null")
        all.push_back(text("null"));
      else
        refuse(where, "there is no type \"" + type + "\"");
    }
    return all.size() == 1 ? all[0] : grammar_.choice(all);
  }

  int64_t count(const Json& schema, const char* key, const std::string& where, int64_t otherwise) const {
    if (!schema.contains(key)) return otherwise;
    const Json& n = schema[key];
    if (!n.is_number_integer() || n < 0 || n > kMostCount)
      refuse(where, fmt::format("{}: expected 0 to {}", key, kMostCount));
    return n.get<int64_t>();
  }

  // What is asked by several keywords is met by all of them.
  Fragment string(const Json& schema, const std::string& where) {
    const int64_t least = count(schema, "minLength", where, 0), most = count(schema, "maxLength", where, -1);
    if (most >= 0 && least > most) refuse(where, "minLength exceeds maxLength");
    const StringFormat* format = schema.contains("format") && schema["format"].is_string()
                                     ? string_format(schema["format"].get<std::string>())
                                     : nullptr;
    const bool counted = least > 0 || most >= 0, matched = schema.contains("pattern");
    if ((matched || counted) && format != nullptr && format->gives_way) format = nullptr;
    const auto quoted = [&](Fragment inside) { return row({text("\""), inside, text("\"")}); };
    if (!matched && format == nullptr && !counted) return grammar_.call(string_);
    if (!matched && format == nullptr)
      return quoted(grammar_.repeat([&] { return grammar_.call(character_); }, least, most));
    std::vector<Fragment> all;
    try {
      if (matched && !schema["pattern"].is_string()) refuse(where, "pattern is no string");
      if (matched)
        all.push_back(add_regex(grammar_, schema["pattern"].get<std::string>(), Match::part, Writing::json_string));
      if (format != nullptr) all.push_back(add_regex(grammar_, format->pattern, Match::whole, Writing::json_string));
      const auto character = [&] { return one_of(grammar_, every_character(), Writing::json_string); };
      if (counted) all.push_back(grammar_.repeat(character, least, most));
      for (size_t i = 1; i < all.size(); ++i) all[0] = meet(grammar_, all[0], all[i], Meet::both);
    } catch (const Error& e) {
      refuse(where, e.what());
    }
    return quoted(all[0]);
  }

  Fragment number(const Json& schema, const std::string& where, bool integer) {
    Bounds bounds;
    const auto read = [&](const char* key, std::optional<double>& bound, bool& excluded, bool low, bool excludes) {
      if (!schema.contains(key)) return;
      if (schema[key].is_boolean()) refuse(where, std::string(key) + " is the form of draft 4: give a number");
      if (!schema[key].is_number()) refuse(where, std::string(key) + " is not a number");
      const double x = schema[key].get<double>();
      if (bound && (low ? x < *bound : x > *bound)) return;
      excluded = bound && *bound == x ? excluded || excludes : excludes;
      bound = x;
    };
    read("minimum", bounds.low, bounds.low_excluded, true, false);
    read("exclusiveMinimum", bounds.low, bounds.low_excluded, true, true);
    read("maximum", bounds.high, bounds.high_excluded, false, false);
    read("exclusiveMaximum", bounds.high, bounds.high_excluded, false, true);
    const bool stepped = schema.contains("multipleOf");
    if (stepped && !(schema["multipleOf"].is_number() && schema["multipleOf"].get<double>() > 0))
      refuse(where, "multipleOf is not a number above 0");
    if (bounds.none() && !stepped) return integer ? any_integer(grammar_) : any_number(grammar_);
    try {
      const Fragment within = integer ? bounded_integer(grammar_, bounds) : bounded_number(grammar_, bounds);
      return stepped ? meet(grammar_, within, multiples(grammar_, schema["multipleOf"].get<double>()), Meet::both)
                     : within;
    } catch (const Error& e) {
      refuse(where, e.what());
    }
  }

  // --- objects and arrays -----------------------------------------------------------------------------------------
  struct Member {
    std::string name;
    RuleId value;
    bool required;
  };
  Fragment object(const Json& schema, const std::string& where, int depth) {
    const Json properties = schema.value("properties", Json::object()),
               required = schema.value("required", Json::array());
    const Json more = schema.value("additionalProperties", Json(true));
    if (!properties.is_object()) refuse(where, "properties is not an object");
    if (!required.is_array()) refuse(where, "required is not a list");
    const int64_t least = count(schema, "minProperties", where, 0), most = count(schema, "maxProperties", where, -1);
    const bool closed = more == Json(false);
    if (properties.empty() && required.empty()) {
      if (closed || most == 0) {
        if (least > 0) refuse(where, "minProperties, but no property is allowed");
        return row({text("{"), text("}")});
      }
      if (least > 1) refuse(where, "minProperties above 1 without names: keys might repeat");
      const bool any = more.is_boolean() || (more.is_object() && !says_something(more));
      const RuleId rule = any ? any_ : rule_of(value(more, where + "/additionalProperties", depth + 1));
      return any && least == 0 && most < 0 ? grammar_.call(object_) : map_of(rule, least, most);
    }
    std::vector<Member> members;
    std::set<std::string> names;
    for (const Json& name : required)
      if (name.is_string()) names.insert(name.get<std::string>());
    const auto is_required = [&](const std::string& name) { return names.contains(name); };
    int64_t needed = 0;
    for (const auto& [name, property] : properties.items()) {
      if (property == Json(false)) {
        if (is_required(name)) refuse(where, "\"" + name + "\" is required and forbidden");
        continue;
      }
      members.push_back({name, rule_of(value(property, where + "/" + name, depth + 1)), is_required(name)});
      needed += members.back().required;
    }
    for (const Json& name : required) {
      if (!name.is_string()) refuse(where, "required is not a list of names");
      if (properties.contains(name.get<std::string>())) continue;
      if (closed) refuse(where, "\"" + name.get<std::string>() + "\" is required and no property");
      const bool any = more.is_boolean();
      members.push_back({name.get<std::string>(), any ? any_ : rule_of(value(more, where, depth + 1)), true});
      ++needed;
    }
    if (least > needed || (most >= 0 && most < std::ssize(members)))
      refuse(where, "minProperties or maxProperties that the named properties do not meet by themselves");
    return object_of(members);
  }

  // Members in their order; optional ones may be left out. `at` is a place behind some member, `front` before all.
  Fragment object_of(const std::vector<Member>& members) {
    Grammar& g = grammar_;
    const auto text_of = [&](const Member& m) {
      return row(
          {text(Json(m.name).dump(-1, ' ', false, Json::error_handler_t::replace) + ":"), space(), g.call(m.value)});
    };
    const Fragment front = row({text("{"), space()}), back = row({space(), text("}")});
    Fragment at = g.empty();
    bool first = true;  // nothing before is required
    for (size_t i = 0; i < members.size(); ++i) {
      const Fragment behind = g.empty();
      if (i > 0) {  // nothing stands before the first
        const Fragment further = row({g.call(comma_), text_of(members[i])});
        g.link(at.last, further.first);
        g.link(further.last, behind.first);
        if (!members[i].required) g.link(at.last, behind.first);
      }
      if (first) {
        const Fragment one = text_of(members[i]);
        g.link(front.last, one.first);
        g.link(one.last, behind.first);
      }
      first = first && !members[i].required;
      at = behind;
    }
    g.link(at.last, back.first);
    const Fragment all{front.first, g.empty().first};
    g.link(back.last, all.last);
    if (first) {
      const Fragment bare = text("}");
      g.link(front.last, bare.first);
      g.link(bare.last, all.last);
    }
    return all;
  }

  Fragment array(const Json& schema, const std::string& where, int depth) {
    Grammar& g = grammar_;
    const Json prefix = schema.value("prefixItems", Json::array()), items = schema.value("items", Json(true));
    if (!prefix.is_array() || items.is_array()) refuse(where, "prefixItems is not a list, or items is one");
    const int64_t least = count(schema, "minItems", where, 0);
    int64_t most = count(schema, "maxItems", where, -1);
    const int64_t fixed = std::ssize(prefix);
    if (items == Json(false)) most = most < 0 ? fixed : std::min(most, fixed);
    if (most >= 0 && least > most) refuse(where, "minItems exceeds what is allowed");
    std::vector<RuleId> rules;
    for (const Json& one : prefix) rules.push_back(rule_of(value(one, where + "/prefixItems", depth + 1)));
    const RuleId rest = items.is_boolean() ? any_ : rule_of(value(items, where + "/items", depth + 1));
    const Fragment front = row({text("["), space()}), back = row({space(), text("]")});
    NodeId at = front.last;
    const int64_t counted = most >= 0 ? most : std::max({least, fixed, int64_t{1}});
    for (int64_t i = 0; i < counted; ++i) {
      if (i >= least) g.link(at, back.first);
      const Fragment one = g.call(i < fixed ? rules[static_cast<size_t>(i)] : rest),
                     next = i == 0 ? one : row({g.call(comma_), one});
      g.link(at, next.first);
      at = next.last;
    }
    if (most < 0) {
      const Fragment hub = g.empty(), next = row({g.call(comma_), g.call(rest)});
      g.link(at, hub.first), g.link(hub.first, next.first), g.link(next.last, hub.first);
      at = hub.first;
    }
    g.link(at, back.first);
    return {front.first, back.last};
  }

  SchemaDocument document_;
  Grammar grammar_;
  RuleId any_ = 0, string_ = 0, character_ = 0, blank_ = 0, comma_ = 0, object_ = 0;
  std::map<const Json*, RuleId> references_;
};

}  // namespace

Grammar schema_grammar(const nlohmann::ordered_json& schema) { return Compiler(schema).compile(); }

Grammar json_object_grammar() {
  const Json schema = {{"type", "object"}};
  return Compiler(schema).compile();
}

Grammar choice_grammar(const std::vector<std::string>& texts) {
  Grammar grammar;
  const RuleId start = grammar.add_rule();
  std::vector<Fragment> all;
  for (const std::string& text : texts) all.push_back(grammar.literal(text));
  grammar.define(start, grammar.choice(all));
  return grammar;
}

Grammar regex_grammar(std::string_view pattern) {
  Grammar grammar;
  const RuleId start = grammar.add_rule();
  grammar.define(start, grammar.sequence(grammar.empty(), add_regex(grammar, pattern, Match::whole, Writing::utf8)));
  return grammar;
}

}  // namespace fidelio::grammar
