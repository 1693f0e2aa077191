#include "grammar/schema/document.h"

#include <set>

#include "core/error.h"
#include "core/foreign/foreign_text.h"
#include "grammar/schema/uri.h"

namespace fidelio::grammar {
namespace {

constexpr uint64_t kSchemaMemory = 300, kSchemaWork = 4;

// This tells where subschemas stand in a schema: directly at a keyword, in a list, or at the names of an object.
enum class Stands : uint8_t { nowhere, here, listed, named };
Stands stands_at(const std::string& keyword) {
  static const std::map<std::string, Stands> all = {{"additionalProperties", Stands::here},
                                                    {"items", Stands::here},
                                                    {"contains", Stands::here},
                                                    {"not", Stands::here},
                                                    {"if", Stands::here},
                                                    {"then", Stands::here},
                                                    {"else", Stands::here},
                                                    {"propertyNames", Stands::here},
                                                    {"unevaluatedItems", Stands::here},
                                                    {"unevaluatedProperties", Stands::here},
                                                    {"contentSchema", Stands::here},
                                                    {"allOf", Stands::listed},
                                                    {"anyOf", Stands::listed},
                                                    {"oneOf", Stands::listed},
                                                    {"prefixItems", Stands::listed},
                                                    {"properties", Stands::named},
                                                    {"patternProperties", Stands::named},
                                                    {"dependentSchemas", Stands::named},
                                                    {"dependencies", Stands::named},
                                                    {"$defs", Stands::named},
                                                    {"definitions", Stands::named}};
  const auto found = all.find(keyword);
  return found == all.end() ? Stands::nowhere : found->second;
}

bool may_be_schema(const Json& json) { return json.is_object() || json.is_boolean(); }

}  // namespace

void refuse(const std::string& where, const std::string& what) { throw Error("{}: {}", where, what); }

bool asks(const std::string& keyword) {
  static const std::set<std::string> all = {"type",
                                            "enum",
                                            "const",
                                            "properties",
                                            "required",
                                            "additionalProperties",
                                            "items",
                                            "prefixItems",
                                            "minItems",
                                            "maxItems",
                                            "minLength",
                                            "maxLength",
                                            "pattern",
                                            "format",
                                            "minimum",
                                            "maximum",
                                            "exclusiveMinimum",
                                            "exclusiveMaximum",
                                            "anyOf",
                                            "oneOf",
                                            "allOf",
                                            "$ref",
                                            "minProperties",
                                            "maxProperties",
                                            "multipleOf",
                                            "not",
                                            "if",
                                            "dependentRequired",
                                            "dependentSchemas",
                                            "dependencies",
                                            "contains",
                                            "uniqueItems",
                                            "propertyNames",
                                            "patternProperties",
                                            "unevaluatedItems",
                                            "unevaluatedProperties",
                                            "$dynamicRef",
                                            "$recursiveRef"};
  return all.contains(keyword);
}

const Json* Schema::find(const char* keyword) const {
  if (json == nullptr || !json->is_object()) return nullptr;
  const auto found = json->find(keyword);
  return found == json->end() ? nullptr : &*found;
}

std::string Schema::where() const {
  std::string all;
  for (const Schema* at = this; at != nullptr; at = at->parent) all = (at->parent ? "/" + at->step : at->step) + all;
  return all;
}

SchemaDocument::SchemaDocument(const Json& root, Meter& meter) : root_(&root), meter_(meter) {
  resources_.push_back({"", &root});
  resource_of_[""] = &resources_.back();
  walk(root, nullptr, "the schema", &resources_.back());
}

const Schema& SchemaDocument::add(const Json* json, const Schema* parent, std::string step,
                                  const SchemaResource* home) {
  meter_.memory(kSchemaMemory + step.size());
  meter_.work(kSchemaWork);
  schemas_.push_back({json, home, parent, std::move(step), schemas_.size()});
  return schemas_.back();
}

const Schema& SchemaDocument::walk(const Json& json, const Schema* parent, std::string step,
                                   const SchemaResource* home) {
  if (const auto found = known_.find(&json); found != known_.end()) return *found->second;
  if (json.is_object() && json.contains("$id") && json["$id"].is_string()) {
    std::string uri = resolved_uri(home->uri, json["$id"].get<std::string>());
    uri.resize(std::min(uri.find('#'), uri.size()));
    meter_.memory(3 * uri.size());
    meter_.work(uri.size() / 16);
    if (&json == root_) {
      resources_.front().uri = uri;
    } else if (uri != home->uri) {
      resources_.push_back({uri, &json});
      home = &resources_.back();
    }
    resource_of_.emplace(uri, home);
  }
  const Schema& schema = add(&json, parent, std::move(step), home);
  known_[&json] = &schema;
  if (!json.is_object()) return schema;
  for (const auto& [key, value] : json.items()) {
    if ((key == "$anchor" || key == "$dynamicAnchor") && value.is_string()) {
      anchors_.emplace(std::pair(home, value.get<std::string>()), &schema);
      if (key == "$dynamicAnchor") ++dynamic_anchors_[value.get<std::string>()];
    }
    const Stands stands = stands_at(key);
    if (stands == Stands::here && may_be_schema(value)) walk(value, &schema, key, home);
    if (stands == Stands::listed && value.is_array())
      for (size_t i = 0; i < value.size(); ++i) walk(value[i], &schema, fmt::format("{}/{}", key, i), home);
    if (stands == Stands::named && value.is_object())
      for (const auto& [name, one] : value.items())
        if (may_be_schema(one)) walk(one, &schema, key + "/" + name, home);
  }
  return schema;
}

const Schema& SchemaDocument::at(const Schema& in, const Json& json) {
  const auto found = known_.find(&json);
  if (found == known_.end()) refuse(in.where(), "expected a schema: an object, true or false");
  return *found->second;
}

const Schema* SchemaDocument::property(const Schema& of, const std::string& name) {
  const Json* all = of.find("properties");
  if (all == nullptr) return nullptr;
  const auto [found, fresh] = properties_.try_emplace(&of);
  if (fresh) {
    if (!all->is_object()) refuse(of.where(), "properties is not an object");
    meter_.memory(all->size() * 120);
    for (const auto& [key, one] : all->items()) found->second.try_emplace(key, &at(of, one));
  }
  const auto one = found->second.find(name);
  return one == found->second.end() ? nullptr : one->second;
}

bool SchemaDocument::is_trivial(const Schema& schema) const {
  if (schema.json == nullptr || schema.is(false)) return false;
  if (schema.is(true)) return true;
  if (!schema.json->is_object()) return false;
  for (const auto& item : schema.json->items())
    if (asks(item.key())) return false;
  return true;
}

const Schema& SchemaDocument::settled(const Schema& schema) {
  std::vector<const Schema*> way;
  const Schema* at = &schema;
  std::set<const Schema*> seen;
  while (true) {
    if (const auto found = settled_.find(at); found != settled_.end()) {
      at = found->second;
      break;
    }
    const Json* reference = at->find("$ref");
    bool alone = reference != nullptr;
    if (alone)
      for (const auto& item : at->json->items()) alone = alone && (item.key() == "$ref" || !asks(item.key()));
    if (!alone) break;
    way.push_back(at);
    if (!seen.insert(at).second) refuse(at->where(), "a schema refers to itself without anything in between");
    at = &target(*at, "$ref", *reference);
  }
  for (const Schema* one : way) settled_[one] = at;
  return *at;
}

const Schema& SchemaDocument::target(const Schema& of, const std::string& keyword, const Json& reference) {
  if (!reference.is_string()) refuse(of.where(), keyword + " is not a string");
  const std::string name = reference.get<std::string>();
  const auto key = std::pair(of.home, keyword + name);
  if (const auto found = resolved_.find(key); found != resolved_.end()) return *found->second;
  const size_t hash = std::min(name.find('#'), name.size());
  const SchemaResource* in = of.home;
  if (hash > 0) {
    const auto found = resource_of_.find(resolved_uri(of.home->uri, name.substr(0, hash)));
    if (found == resource_of_.end()) refuse(of.where(), keyword + " leads out of the schema: " + name);
    in = found->second;
  }
  const std::string fragment = hash < name.size() ? name.substr(hash + 1) : "";
  const Schema* to = nullptr;
  if (fragment.empty() || fragment[0] == '/') {
    to = &pointed(of, *in, fragment, name);
  } else {
    const auto found = anchors_.find({in, percent_decoded(fragment)});
    if (found == anchors_.end()) refuse(of.where(), keyword + " leads nowhere: " + name);
    to = found->second;
    const Json* dynamic = to->find("$dynamicAnchor");
    if (keyword == "$dynamicRef" && dynamic != nullptr && *dynamic == fragment && dynamic_anchors_[fragment] > 1)
      refuse(of.where(), "$dynamicRef to one of several $dynamicAnchor cannot be imposed on an answer: " + name);
  }
  return *(resolved_[key] = to);
}

// A reference is the fragment of a URL, in which generators spell the < of a name as %3C.
const Schema& SchemaDocument::pointed(const Schema& of, const SchemaResource& in, const std::string& pointer,
                                      const std::string& name) {
  for (const std::string& path : {pointer, percent_decoded(pointer)}) {
    const Json* at = in.root;
    for (size_t begin = 0; begin < path.size() && at != nullptr;) {
      const size_t end = std::min(path.find('/', begin + 1), path.size());
      at = below(*at, path.substr(begin + 1, end - begin - 1));
      begin = end;
    }
    if (at == nullptr) continue;  // It is spelt the other way, or leads nowhere.
    if (!may_be_schema(*at)) refuse(of.where(), "$ref leads to what is no schema: " + name);
    return walk(*at, known_.at(in.root), pointer.substr(std::min<size_t>(1, pointer.size())), &in);
  }
  refuse(of.where(), "$ref leads nowhere: " + name);
}

// Takes one step of a JSON pointer. Returns null where there is nothing.
const Json* SchemaDocument::below(const Json& json, std::string step) {
  for (const auto& [written, meant] : {std::pair{"~1", "/"}, {"~0", "~"}})
    for (size_t at = 0; (at = step.find(written, at)) != std::string::npos; ++at) step.replace(at, 2, meant);
  meter_.work(1 + (json.is_object() ? json.size() / 8 : 0));
  if (json.is_object()) {
    const auto found = json.find(step);
    return found == json.end() ? nullptr : &*found;
  }
  const bool index = !step.empty() && step.size() < 9 && step.find_first_not_of("0123456789") == std::string::npos;
  return json.is_array() && index && std::stoul(step) < json.size() ? &json[std::stoul(step)] : nullptr;
}

const Schema& SchemaDocument::any_of(std::vector<const Schema*> schemas) {
  const Schema& first = *schemas[0];
  add(nullptr, first.parent, first.step, first.home);
  schemas_.back().any = std::move(schemas);
  return schemas_.back();
}

}  // namespace fidelio::grammar
