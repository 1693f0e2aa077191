// serve: how families write calls of tools in their answers. Each begins with a mark of its own, but for bare JSON and
// lists of Python's calls, which are calls only where the whole answer is. docs/serving.md has the table.
//
// A reader is given the text from the mark on, as far as it has come, and says what a longer text could not change.
// Arguments are the JSON text that the model wrote, blanks aside: numbers keep their digits.
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
  std::string text{};        // of a call: the arguments, JSON
  std::string name{}, id{};  // of a call
};

// Holds what the request says of a tool. Some forms write every argument as bare text, which the schema gives its type.
struct Tool {
  std::string name;
  Json parameters = Json::object();
};
using Tools = std::vector<Tool>;
const Tool* tool_of(const Tools& tools, std::string_view name);

struct CallRead {
  enum class Kind : uint8_t { more, none, calls } kind = Kind::none;
  std::vector<Part> calls{};
  size_t size = 0;  // of the text that they are
};
struct CallForm {
  std::string_view mark;
  CallRead (*read)(std::string_view text, bool last, const Tools& tools);  // `last`: no more text will come
};
std::span<const CallForm> call_forms();
// Calls without a mark, in a text that is an answer from its beginning. Names must be those of tools, if there are any.
CallRead unmarked_calls(std::string_view text, bool last, const Tools& tools);
bool may_begin_unmarked_calls(std::string_view text);

// Everything that a form writes as a token of its own; such tokens are special in some families.
std::span<const std::string_view> call_marks();

// Nine letters and digits: the only form that Mistral's templates take back.
std::string new_call_id();

}  // namespace fidelio::serve
