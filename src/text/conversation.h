// A conversation in OpenAI's wire form, as chat templates want it. Whatever is rendered that a client or a file wrote is read
// here: a server's messages, and the texts that a model is calibrated and certified on.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "text/chat_template.h"

namespace fidelio {

// A field that is not what it should be; its name is "messages[3].content".
class FieldError : public Error {
 public:
  FieldError(const std::string& field, const std::string& expected)
      : Error("{}: expected {}", field, expected), field_(field) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

// Messages with content in parts joined and no nulls; "developer", a word that few templates know, is their "system".
// Arguments of calls are JSON texts, as ChatTemplate::render_wire takes them. Throws FieldError.
nlohmann::ordered_json wire_messages(const nlohmann::ordered_json& list, const ChatTemplate& chat);

// Throws FieldError where an entry is no function: it cannot be called, and a template would show it as if it could.
void check_wire_tools(const nlohmann::ordered_json& tools);

// A line of a file, {"messages", "tools", "chat_template_kwargs"}, of which messages alone must be there, rendered. Tools may
// stand there as a JSON text. Throws Error.
std::string render_wire_record(const ChatTemplate& chat, const nlohmann::ordered_json& record);

// The bytes [begin, end) of a text.
struct ByteSpan {
  size_t begin, end;
};
// Finds the arguments of a record's calls in `rendered`, its text, without what the arguments of all calls have at both ends:
// what changes where they are empty. In order and disjoint; without those that the template does not write, or not empty.
std::vector<ByteSpan> spans_of_arguments(const ChatTemplate& chat, const nlohmann::ordered_json& record,
                                         const std::string& rendered);

}  // namespace fidelio
