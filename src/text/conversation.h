// This file reads conversations in OpenAI's wire form and prepares them for chat templates. All conversations that
// clients or files provide pass through it: the messages of the server, and the texts that a model is calibrated and
// certified on.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "text/chat_template.h"

namespace fidelio {

// A FieldError is thrown for a field that has the wrong form; its name looks like "messages[3].content".
class FieldError : public Error {
 public:
  FieldError(const std::string& field, const std::string& expected)
      : Error("{}: expected {}", field, expected), field_(field) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

// Returns the messages with content parts joined and nulls removed. The role "developer", which few templates know,
// becomes "system" for the others. Arguments of calls stay JSON texts, as ChatTemplate::render_wire takes them. What
// the template would leave out is put where it shows it (text/history.h). Throws FieldError.
nlohmann::ordered_json wire_messages(const nlohmann::ordered_json& list, const ChatTemplate& chat);

// Throws FieldError where an entry is no function: it cannot be called, and a template would show it as if it could.
void check_wire_tools(const nlohmann::ordered_json& tools);

// Renders one line of a file, {"messages", "tools", "chat_template_kwargs"}, in which only messages are required. Tools
// may be given as a JSON text. Throws Error.
std::string render_wire_record(const ChatTemplate& chat, const nlohmann::ordered_json& record);

// These are the bytes [begin, end) of a text.
struct ByteSpan {
  size_t begin, end;
};
// Finds the arguments of a record's calls in `rendered`, the text of the record. A span is the part of the text that
// changes where the arguments are empty, so characters that all arguments share at both ends (braces) are not in it.
// Spans are in order and disjoint. Arguments that the template does not write, or does not accept empty, have none.
std::vector<ByteSpan> spans_of_arguments(const ChatTemplate& chat, const nlohmann::ordered_json& record,
                                         const std::string& rendered);

}  // namespace fidelio
