// This file reads calls of tools in the forms that model families write them. Each form begins with a mark of its own.
// The exceptions are bare JSON and lists of Python calls, which count as calls only if they are the whole answer.
// docs/serving.md has the table.
//
// A reader gets the text from the mark on, as far as it has arrived, and returns only results that a longer text cannot
// change. Arguments are the JSON text that the model wrote, without blanks, so numbers keep their digits.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio::serve {

using Json = nlohmann::ordered_json;

struct Part {
  enum class Kind : uint8_t { thought, text, call } kind = Kind::text;
  std::string text{};        // For a call these are the arguments, as JSON.
  std::string name{}, id{};  // They belong to a call.
  bool apart = false;        // It begins a message of its own, and others of its kind came before it.
  // Returns the text as it continues those of the same kind before it.
  std::string joined() const { return (apart ? "\n\n" : "") + text; }
};

// This is a tool of the request. Some forms write every argument as bare text, which gets its type from the schema.
struct Tool {
  std::string name;
  Json parameters = Json::object();
};
using Tools = std::vector<Tool>;
const Tool* tool_of(const Tools& tools, std::string_view name);

struct CallRead {
  enum class Kind : uint8_t { more, none, calls } kind = Kind::none;
  std::vector<Part> calls{};
  size_t size = 0;  // This is the length of the calls' text.
};
struct CallForm {
  std::string_view mark;
  CallRead (*read)(std::string_view text, bool last, const Tools& tools);  // `last` says that no more text will arrive.
};
std::span<const CallForm> call_forms();
// Reads calls without a mark, in a text that is an answer from its beginning. Their names must be those of tools, if
// there are any.
CallRead unmarked_calls(std::string_view text, bool last, const Tools& tools);
bool may_begin_unmarked_calls(std::string_view text);

// Returns everything that a form writes as a token of its own. Such tokens are special in some families.
std::span<const std::string_view> call_marks();

// Returns nine letters and digits, the only form that Mistral's templates accept.
std::string new_call_id();

}  // namespace fidelio::serve
