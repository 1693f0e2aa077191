// JSON as it is written: where values end in a text, and a text cut into its members, without becoming values on the
// way. A number keeps its digits so, which no double would: 1.0, 1e400, 12345678901234567890.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio {

// This tells where a value ends that begins at `begin`. Strings may hold control characters, which models write as they
// are; else JSON is taken strictly, and nested at most kMaxNesting deep.
struct JsonEnd {
  enum class Kind : uint8_t { whole, unfinished, broken } kind;
  size_t at = 0;  // one past the value, if it is whole
};
JsonEnd end_of_json(std::string_view text, size_t begin);
// The text, blanks aside, is one value.
bool is_json(std::string_view text);

// These take a whole value apart: an object into its members, in their order, and an array into its elements.
struct JsonMember {
  std::string key;
  std::string_view value;
};
std::vector<JsonMember> json_members(std::string_view object);
std::vector<std::string_view> json_elements(std::string_view array);
// The last member of this name, as JSON's readers have it; empty: there is none, or the value is no object.
std::string_view json_member(std::string_view object, std::string_view key);

// The same value without blanks between its tokens, and with the control characters of its strings escaped.
std::string compact_json(std::string_view value);
// A string's text, and a text as a string. What is no Unicode in the escapes becomes U+FFFD.
std::string text_of_json(std::string_view string);
std::string json_of_text(std::string_view text);

}  // namespace fidelio
