// This file handles JSON as text: it finds where a value ends and cuts a value into its members, without parsing it
// into values on the way. Numbers therefore keep digits that a double would lose, as in 1.0, 1e400 or
// 12345678901234567890.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio {

// end_of_json() tells where the value that begins at `begin` ends. Strings may hold unescaped control characters, as
// models write them. Otherwise JSON is taken strictly, and nested at most kMaxNesting deep.
struct JsonEnd {
  enum class Kind : uint8_t { whole, unfinished, broken } kind;
  size_t at = 0;  // It is one past the end of the value, if the value is whole.
};
JsonEnd end_of_json(std::string_view text, size_t begin);
// Tells whether the text, apart from blanks around it, is one value.
bool is_json(std::string_view text);

// These functions take a whole value apart: an object into its members, in their order, and an array into its elements.
struct JsonMember {
  std::string key;
  std::string_view value;
};
std::vector<JsonMember> json_members(std::string_view object);
std::vector<std::string_view> json_elements(std::string_view array);
// Returns the last member of this name, as readers of JSON do. The result is empty if there is none or the value is no
// object.
std::string_view json_member(std::string_view object, std::string_view key);

// Returns the same value without blanks between its tokens and with the control characters in its strings escaped.
std::string compact_json(std::string_view value);
// The first returns the text that a JSON string stands for, the second a text as a JSON string. Escapes that are no
// Unicode character become U+FFFD.
std::string text_of_json(std::string_view string);
std::string json_of_text(std::string_view text);

}  // namespace fidelio
