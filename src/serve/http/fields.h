// This file reads the fields of a request's JSON object. A field that is absent or null has its default. One of the
// wrong type or outside its bounds is refused by name, with RequestError (400).
#pragma once
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "serve/http/request_error.h"

namespace fidelio::serve {

// Order is kept, because tools and schemas are shown to models in the order in which they came.
using Json = nlohmann::ordered_json;

class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = "") : object_(object), prefix_(std::move(prefix)) {
    if (!object.is_object())
      throw RequestError(400, prefix_.empty() ? "the body is not a JSON object" : prefix_ + " is not an object",
                         prefix_);
  }

  const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::optional<double> number(const char* name, double low, double high) const {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_number()) refuse(name, "a number");
    const double x = value->get<double>();
    if (!(x >= low && x <= high)) refuse(name, fmt::format("a number from {} to {}", low, high));
    return x;
  }
  std::optional<int64_t> integer(const char* name, int64_t low, int64_t high) const {
    const Json* value = find(name);
    if (value == nullptr) return {};
    // Some clients write 16.0 for 16.
    const bool whole =
        value->is_number_integer() || (value->is_number_float() && std::abs(value->get<double>()) < 1e15 &&
                                       std::trunc(value->get<double>()) == value->get<double>());
    if (!whole) refuse(name, "an integer");
    const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
    const int64_t x = huge ? INT64_MAX : value->get<int64_t>();
    if (huge || x < low || x > high) refuse(name, fmt::format("an integer from {} to {}", low, high));
    return x;
  }
  bool boolean(const char* name, bool otherwise) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(name, "true or false");
    return value->get<bool>();
  }
  std::optional<std::string> text(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_string()) refuse(name, "a string");
    return value->get<std::string>();
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& expected) const {
    const std::string full = prefix_.empty() ? name : prefix_ + "." + name;
    throw RequestError(400, full + ": expected " + expected, full);
  }

 private:
  const Json& object_;
  std::string prefix_;
};

}  // namespace fidelio::serve
