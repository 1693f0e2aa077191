// This file gives typed access to the fields of a JSON object. A missing field or a wrong type throws Error naming the
// field, what was expected and what was found. `where` names the object ("tokenizer.json: model"). Only .cc files
// include it, as the JSON library is slow to compile.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"

namespace fidelio::tokenization {

using Json = nlohmann::json;

inline void expect_type(bool right, const Json& value, const std::string& where, const char* expected) {
  check(right, "{}: expected {}, found {}", where, expected, value.type_name());
}

// Returns null when the field is absent or null.
inline const Json* find_field(const Json& object, const char* key, const std::string& where) {
  expect_type(object.is_object(), object, where, "an object");
  auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

inline const Json& field(const Json& object, const char* key, const std::string& where) {
  const Json* value = find_field(object, key, where);
  check(value != nullptr, "{}: the field '{}' is missing", where, key);
  return *value;
}

inline const std::string& string_of(const Json& value, const std::string& where) {
  expect_type(value.is_string(), value, where, "a string");
  return value.get_ref<const std::string&>();
}

inline const std::string& string_field(const Json& object, const char* key, const std::string& where) {
  return string_of(field(object, key, where), where + "." + key);
}

inline bool bool_field(const Json& object, const char* key, bool absent, const std::string& where) {
  const Json* value = find_field(object, key, where);
  if (!value) return absent;
  expect_type(value->is_boolean(), *value, where + "." + key, "true or false");
  return value->get<bool>();
}

inline const Json& array_field(const Json& object, const char* key, const std::string& where) {
  const Json& value = field(object, key, where);
  expect_type(value.is_array(), value, where + "." + key, "an array");
  return value;
}

// Returns an integer in [0, limit).
inline int32_t index_of(const Json& value, int32_t limit, const std::string& where) {
  expect_type(value.is_number_integer(), value, where, "an integer");
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() < static_cast<uint64_t>(limit) : false;
  check(fits, "{}: {} is out of range; expected 0 to {}", where, value.dump(), limit - 1);
  return value.get<int32_t>();
}

}  // namespace fidelio::tokenization
