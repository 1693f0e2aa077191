// grammar: a JSON Schema as a document: what its references name, and one schema that says what several say together.
#pragma once
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <unordered_map>

#include "core/foreign/limits.h"

namespace fidelio::grammar {

using Json = nlohmann::ordered_json;

// Throws Error: `where` is the place in the schema.
[[noreturn]] void refuse(const std::string& where, const std::string& what);

bool describes(const std::string& keyword);  // says nothing about what is valid
bool imposed(const std::string& keyword);    // the grammar holds answers to it
bool says_something(const Json& schema);     // has a keyword that is imposed; unknown ones are passed over
std::string type_of(const Json& value);

class SchemaDocument {
 public:
  explicit SchemaDocument(const Json& root) : root_(root) {}
  const Json& root() const { return root_; }
  const Json& resolve(const std::string& where, const Json& reference) const;
  // What is valid for both a and b.
  Json merged(const std::string& where, Json a, const Json& b) const;
  // Refuses a part whose additionalProperties: false forbids what another part of the whole names.
  void check_closed(const std::string& where, const Json& part, const Json& whole) const;
  // Refuses cases of a oneOf that one answer may meet together.
  void check_exclusive(const Json& cases, const std::string& where) const;
  // "type", or "type value" of each of a list of constants; empty: any.
  std::set<std::string> types_of(const Json& schema) const;

 private:
  bool exclusive(const Json& a, const Json& b) const;

  const Json& root_;
  mutable int merges_ = 0;
  mutable std::unordered_map<std::string, const Json*> resolved_{};
  mutable Meter meter_{"the schema"};  // copies and comparisons, which may grow faster than the schema
};

}  // namespace fidelio::grammar
