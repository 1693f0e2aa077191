#include "grammar/schema_document.h"

#include <algorithm>

#include "core/error.h"
#include "core/foreign/foreign_text.h"

namespace fidelio::grammar {
namespace {

constexpr int kMostMerges = 1000;
constexpr uint64_t kPair = 16;  // steps for the types of two cases

// Values in a value, itself included: what its copy takes.
uint64_t size_of(const Json& value) {
  uint64_t size = 1;
  if (value.is_structured())
    for (const Json& one : value) size += size_of(one);
  return size;
}

bool disjoint(const std::set<std::string>& a, const std::set<std::string>& b) {
  if (a.empty() || b.empty()) return false;
  for (const std::string& x : a)
    for (const std::string& y : b) {
      const std::string kind_x = x.substr(0, x.find(' ')), kind_y = y.substr(0, y.find(' '));
      const bool both = x.find(' ') != std::string::npos && y.find(' ') != std::string::npos;
      const bool numbers = (kind_x == "integer" || kind_x == "number") && (kind_y == "integer" || kind_y == "number");
      if (both ? x == y : kind_x == kind_y || numbers) return false;
    }
  return true;
}
}  // namespace

void refuse(const std::string& where, const std::string& what) { throw Error("{}: {}", where, what); }

bool describes(const std::string& key) {
  static const std::set<std::string> keys = {
      "title",    "description",     "default",          "examples",   "$schema",  "$id",
      "$comment", "$defs",           "definitions",      "deprecated", "readOnly", "writeOnly",
      "$anchor",  "contentEncoding", "contentMediaType", "strict",     "name"};
  return keys.contains(key);
}
bool imposed(const std::string& key) {
  static const std::set<std::string> keys = {
      "type",      "enum",        "const",    "properties", "required",         "additionalProperties",
      "items",     "prefixItems", "minItems", "maxItems",   "minLength",        "maxLength",
      "pattern",   "format",      "minimum",  "maximum",    "exclusiveMinimum", "exclusiveMaximum",
      "anyOf",     "oneOf",       "allOf",    "$ref",       "minProperties",    "maxProperties",
      "multipleOf"};
  return keys.contains(key);
}

bool says_something(const Json& schema) {
  for (const auto& item : schema.items())
    if (imposed(item.key())) return true;
  return false;
}

std::string type_of(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "boolean";
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  if (value.is_string()) return "string";
  return value.is_array() ? "array" : "object";
}

const Json& SchemaDocument::resolve(const std::string& where, const Json& ref) const {
  if (!ref.is_string()) refuse(where, "$ref is not a string");
  const std::string name = ref.get<std::string>();
  if (!name.starts_with('#')) refuse(where, "$ref leads out of the schema");
  if (const auto found = resolved_.find(name); found != resolved_.end()) return *found->second;
  // A reference is the fragment of a URL, in which generators spell the < of a name as %3C.
  for (const std::string& path : {name.substr(1), percent_decoded(name.substr(1))}) {
    try {
      return *(resolved_[name] = &root_.at(Json::json_pointer(path)));
    } catch (const Json::exception&) {  // spelt the other way, or nowhere
    }
  }
  refuse(where, "$ref leads nowhere: " + name);
}

Json SchemaDocument::merged(const std::string& where, Json a, const Json& b) const {
  meter_.work(size_of(a) + size_of(b));
  if (a == Json(true)) return b;
  if (b == Json(true)) return a;
  if (!a.is_object() || !b.is_object()) refuse(where, "expected a schema: an object, or true");
  if (a.contains("$ref")) {
    const Json target = resolve(where, a["$ref"]);
    a.erase("$ref");
    if (++merges_ > kMostMerges) refuse(where, "too many references");
    return merged(where, merged(where, target, a), b);
  }
  if (b.contains("$ref")) return merged(where, b, a);
  for (const auto& [key, theirs] : b.items()) {
    if (describes(key) || !a.contains(key)) {
      a[key] = theirs;
      continue;
    }
    Json& ours = a[key];
    if (ours == theirs) continue;
    if (key == "properties") {
      if (!ours.is_object() || !theirs.is_object()) refuse(where, "properties is not an object");
      meter_.work(theirs.size() * (ours.size() + theirs.size()) / 8);
      for (const auto& [name, property] : theirs.items())
        ours[name] = ours.contains(name) ? Json{{"allOf", Json::array({ours[name], property})}} : property;
    } else if (key == "required") {
      if (!ours.is_array() || !theirs.is_array()) refuse(where, "required is not a list");
      meter_.work(theirs.size() * (ours.size() + theirs.size()) / 8);
      for (const Json& name : theirs)
        if (std::find(ours.begin(), ours.end(), name) == ours.end()) ours.push_back(name);
    } else if (key == "minimum" || key == "minItems" || key == "minLength") {
      ours = std::max(ours, theirs);
    } else if (key == "maximum" || key == "maxItems" || key == "maxLength") {
      ours = std::min(ours, theirs);
    } else {
      refuse(where, "two different values of \"" + key + "\" cannot be imposed together");
    }
  }
  return a;
}
void SchemaDocument::check_closed(const std::string& where, const Json& part, const Json& whole) const {
  if (!part.is_object()) return;
  if (part.value("additionalProperties", Json(true)) != Json(false) || !whole.contains("properties")) return;
  const Json own = part.value("properties", Json::object());
  meter_.work(size_of(own) + own.size() * whole["properties"].size() / 8);
  for (const auto& item : whole["properties"].items())
    if (!own.contains(item.key()))
      refuse(where, "additionalProperties forbids \"" + item.key() + "\", which another part names");
}

std::set<std::string> SchemaDocument::types_of(const Json& schema) const {
  if (!schema.is_object()) return {};
  if (schema.contains("const")) return {type_of(schema["const"]) + " " + schema["const"].dump()};
  if (schema.contains("enum") && schema["enum"].is_array()) {
    std::set<std::string> all;
    for (const Json& one : schema["enum"]) {
      meter_.work(1 + size_of(one));
      all.insert(type_of(one) + " " + one.dump());
    }
    return all;
  }
  if (!schema.contains("type")) return {};
  const Json& type = schema["type"];
  std::set<std::string> all;
  for (const Json& one : type.is_array() ? type : Json::array({type}))
    if (one.is_string()) all.insert(one.get<std::string>());
  return all;
}
bool SchemaDocument::exclusive(const Json& a, const Json& b) const {
  meter_.work(kPair);
  if (disjoint(types_of(a), types_of(b))) return true;
  if (!a.is_object() || !b.is_object() || !a.contains("properties") || !b.contains("properties")) return false;
  const auto requires_it = [&](const Json& schema, const std::string& name) {
    const Json list = schema.value("required", Json::array());
    meter_.work(list.size());
    return std::find(list.begin(), list.end(), Json(name)) != list.end();
  };
  meter_.work(a["properties"].size() * (1 + b["properties"].size() / 8));
  for (const auto& [name, property] : a["properties"].items())
    if (b["properties"].contains(name) && requires_it(a, name) && requires_it(b, name) &&
        disjoint(types_of(property), types_of(b["properties"][name])))
      return true;
  return false;
}
void SchemaDocument::check_exclusive(const Json& cases, const std::string& where) const {
  std::vector<Json> all;
  for (const Json& one : cases)
    all.push_back(one.is_object() && one.contains("$ref") ? resolve(where, one["$ref"]) : one);
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (!exclusive(all[i], all[j]))
        refuse(where,
               "oneOf has cases that an answer may meet together: use anyOf, or give each a type or a constant of "
               "its own");
}

}  // namespace fidelio::grammar
