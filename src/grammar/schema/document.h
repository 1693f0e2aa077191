// This file reads a JSON Schema as a document: it finds the places where schemas stand and the targets of their
// references.
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

// Throws Error; `where` is the place in the schema.
[[noreturn]] void refuse(const std::string& where, const std::string& what);

// This is a part of the document that has a $id, against which its references are resolved. The document itself is one.
struct SchemaResource {
  std::string uri;
  const Json* root;
};

// This is a place where a schema stands.
struct Schema {
  const Json* json;  // Null marks a schema of our own, which is met where one of `any` is.
  const SchemaResource* home;
  const Schema* parent;  // The root of the document has none.
  std::string step;      // It leads here from the parent.
  size_t number;         // It is the order in the document.
  std::vector<const Schema*> any{};

  std::string where() const;
  bool is(bool constant) const { return json != nullptr && json->is_boolean() && json->get<bool>() == constant; }
  const Json* find(const char* keyword) const;  // It returns null if the schema lacks the keyword.
};

// Returns true for a keyword that restricts values. Other keywords are annotations or unknown, and are ignored.
bool asks(const std::string& keyword);

class SchemaDocument {
 public:
  SchemaDocument(const Json& root, Meter& meter);
  const Schema& root() const { return *known_.at(root_); }
  // Returns the schema with this JSON, which stands in `in`.
  const Schema& at(const Schema& in, const Json& json);
  // Returns the schema of a property, or null if `properties` does not have the name.
  const Schema* property(const Schema& of, const std::string& name);
  // Returns the schema itself, or the target of its reference if it has no other restriction.
  const Schema& settled(const Schema& schema);
  const Schema& target(const Schema& of, const std::string& keyword, const Json& reference);
  const Schema& any_of(std::vector<const Schema*> schemas);
  bool is_trivial(const Schema& schema) const;  // It is true if the schema restricts nothing.

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
  std::unordered_map<std::string, const SchemaResource*> resource_of_{};  // The key is its URI.
  std::map<std::pair<const SchemaResource*, std::string>, const Schema*> anchors_{}, resolved_{};
  std::map<std::string, int> dynamic_anchors_{};
  std::unordered_map<const Schema*, const Schema*> settled_{};
  std::unordered_map<const Schema*, std::unordered_map<std::string, const Schema*>> properties_{};
};

}  // namespace fidelio::grammar
