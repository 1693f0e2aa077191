// grammar: a JSON Schema as a document: the places where schemas stand, and what their references name.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/foreign/limits.h"

namespace fidelio::grammar {

using Json = nlohmann::ordered_json;

// Throws Error: `where` is the place in the schema.
[[noreturn]] void refuse(const std::string& where, const std::string& what);

// A part of the document that has a $id, from which its references are read; the document is one itself.
struct SchemaResource {
  std::string uri;
  const Json* root;
};

// A place where a schema stands.
struct Schema {
  const Json* json;  // null: a schema of our own, which is met where one of `any` is
  const SchemaResource* home;
  const Schema* parent;  // none: the document's root
  std::string step;      // from the parent
  size_t number;         // in the order of the document
  std::vector<const Schema*> any{};

  std::string where() const;
  bool is(bool constant) const { return json != nullptr && json->is_boolean() && json->get<bool>() == constant; }
  const Json* find(const char* keyword) const;  // null: it has none
};

// Returns true for a keyword that asks something of answers; others describe, or are nobody's, and are passed over.
bool asks(const std::string& keyword);

class SchemaDocument {
 public:
  SchemaDocument(const Json& root, Meter& meter);
  const Schema& root() const { return *known_.at(root_); }
  // The schema whose JSON this is, which stands in `in`.
  const Schema& at(const Schema& in, const Json& json);
  const Schema* property(const Schema& of, const std::string& name);  // null: `properties` has none of the name
  // The schema itself, or what it refers to where a reference is all that it asks.
  const Schema& settled(const Schema& schema);
  const Schema& target(const Schema& of, const std::string& keyword, const Json& reference);
  const Schema& any_of(std::vector<const Schema*> schemas);
  bool is_trivial(const Schema& schema) const;  // It asks nothing.

 private:
  const Schema& walk(const Json& json, const Schema* parent, std::string step, const SchemaResource* home);
  const Schema& add(const Json* json, const Schema* parent, std::string step, const SchemaResource* home);
  const Schema& pointed(const Schema& of, const SchemaResource& in, const std::string& pointer,
                        const std::string& name);
  const Json* below(const Json& json, std::string step);

  const Json* root_;
  Meter& meter_;
  std::deque<Schema> schemas_{};
  std::deque<SchemaResource> resources_{};
  std::unordered_map<const Json*, const Schema*> known_{};
  std::unordered_map<std::string, const SchemaResource*> resource_of_{};  // by its URI
  std::map<std::pair<const SchemaResource*, std::string>, const Schema*> anchors_{}, resolved_{};
  std::map<std::string, int> dynamic_anchors_{};
  std::unordered_map<const Schema*, const Schema*> settled_{};
  std::unordered_map<const Schema*, std::unordered_map<std::string, const Schema*>> properties_{};
};

}  // namespace fidelio::grammar
