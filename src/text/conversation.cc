#include "text/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/foreign/json.h"
#include "core/foreign/json_text.h"
#include "text/history.h"

namespace fidelio {
namespace {

using Json = nlohmann::ordered_json;

const Json* member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// Joins [{"type": "text", "text": ...}, ...] into one text.
std::string joined_parts(const Json& parts, const std::string& field) {
  std::string text;
  for (const Json& part : parts) {
    const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string() &&
                         (!part.contains("type") || part["type"] == "text");
    if (!is_text) throw FieldError(field, "a string or parts of type text: no others are read");
    text += part["text"].get<std::string>();
  }
  return text;
}

void check_wire_calls(const Json& calls, const std::string& field) {
  if (!calls.is_array()) throw FieldError(field, "an array");
  for (const Json& call : calls) {
    if (!call.is_object()) throw FieldError(field, "an array of objects");
    if (!call.contains("function") || !call["function"].is_object()) continue;
    const Json& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const std::string text = function["arguments"].get<std::string>();
    if (!text.empty() && !is_json(text)) throw FieldError(field, "arguments of a call as a JSON text");
  }
}

// Removes fields that are null. Clients send an answer back with all its fields, and templates test which exist and
// concatenate them as texts.
void drop_nulls(Json& message) {
  for (auto field = message.begin(); field != message.end();)
    field = field->is_null() ? message.erase(field) : std::next(field);
}

void read_wire_message(Json& message, const std::string& place, bool knows_developer) {
  if (!message.is_object()) throw FieldError(place, "an object");
  const Json* role = member(message, "role");
  if (role == nullptr || !role->is_string()) throw FieldError(place + ".role", "a string");
  if (*role == "developer" && !knows_developer) message["role"] = "system";
  // An empty list of calls says nothing, but templates test whether there is a list.
  if (const Json* list = member(message, "tool_calls"); list != nullptr && list->is_array() && list->empty())
    message.erase("tool_calls");
  const bool calls = member(message, "tool_calls") != nullptr;
  if (!calls && !message.contains("content")) throw FieldError(place + ".content", "a string, or parts of type text");
  drop_nulls(message);
  Json& content = message["content"];
  if (content.is_null()) {
    content = "";
  } else if (content.is_array()) {
    content = joined_parts(content, place + ".content");
  } else if (!content.is_string()) {
    throw FieldError(place + ".content", "a string, parts of type text, or null");
  }
  if (calls) check_wire_calls(message["tool_calls"], place + ".tool_calls");
}

}  // namespace

Json wire_messages(const Json& list, const ChatTemplate& chat) {
  if (!list.is_array() || list.empty()) throw FieldError("messages", "an array of messages");
  const bool knows_developer = chat.source().find("developer") != std::string::npos;
  Json messages = list;
  for (size_t i = 0; i < messages.size(); ++i)
    read_wire_message(messages[i], fmt::format("messages[{}]", i), knows_developer);
  return shown_history(std::move(messages), chat.source());
}

void check_wire_tools(const Json& tools) {
  if (!tools.is_array()) throw FieldError("tools", "an array");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    const Json& tool = tools[i];
    if (!tool.is_object()) throw FieldError(place, "an object");
    if (const Json* type = member(tool, "type"); type != nullptr && *type != "function")
      throw FieldError(place + ".type", "function: there are no tools of other types here");
    const Json* function = member(tool, "function");
    if (function == nullptr || !function->is_object()) throw FieldError(place + ".function", "an object with a name");
    const Json *name = member(*function, "name"), *parameters = member(*function, "parameters");
    if (name == nullptr || !name->is_string() || *name == "") throw FieldError(place + ".function.name", "a name");
    if (parameters != nullptr && !parameters->is_object())
      throw FieldError(place + ".function.parameters", "a JSON schema: an object");
  }
}

std::string render_wire_record(const ChatTemplate& chat, const Json& record) {
  const Json messages = wire_messages(record.at("messages"), chat);
  Json extra = Json::object();
  if (const Json* more = member(record, "chat_template_kwargs")) {
    if (!more->is_object()) throw FieldError("chat_template_kwargs", "an object");
    extra = *more;
  }
  if (const Json* tools = member(record, "tools")) {
    const Json list = tools->is_string() ? parse_ordered_json(tools->get<std::string>(), "tools") : *tools;
    check_wire_tools(list);
    if (!list.empty()) extra["tools"] = shown_tools(list, chat.source());
  }
  return chat.render_wire(messages, extra);
}

namespace {

// Returns the part of `text` that differs from `other`: the common beginning is cut off and, of the rest, the common
// end.
ByteSpan difference_of(const std::string& text, const std::string& other) {
  const size_t shorter = std::min(text.size(), other.size());
  size_t begin = 0, behind = 0;
  while (begin < shorter && text[begin] == other[begin]) ++begin;
  while (behind < shorter - begin && text[text.size() - 1 - behind] == other[other.size() - 1 - behind]) ++behind;
  return {begin, text.size() - behind};
}

}  // namespace

std::vector<ByteSpan> spans_of_arguments(const ChatTemplate& chat, const Json& record, const std::string& rendered) {
  std::vector<ByteSpan> spans;
  Json changed = record;
  for (Json& message : changed.at("messages")) {
    const auto calls = message.is_object() ? message.find("tool_calls") : message.end();
    if (!message.is_object() || calls == message.end() || !calls->is_array()) continue;
    for (Json& call : *calls) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
      if (!call["function"].contains("arguments") || !call["function"]["arguments"].is_string()) continue;
      const std::string arguments = std::exchange(call["function"]["arguments"], "{}").get<std::string>();
      try {
        const ByteSpan span = difference_of(rendered, render_wire_record(chat, changed));
        if (span.begin < span.end && (spans.empty() || span.begin >= spans.back().end)) spans.push_back(span);
      } catch (const Error&) {  // The template refuses a call without arguments, so nothing is found for this call.
      }
      call["function"]["arguments"] = arguments;
    }
  }
  return spans;
}

}  // namespace fidelio
