#include "serve/forms/chat_prompt.h"

#include "core/foreign/json.h"
#include "serve/forms/openai_request.h"

namespace fidelio::serve {
namespace {

// [{"type": "text", "text": ...}, ...] as one text.
std::string text_of(const Fields& message, const Json& parts) {
  std::string text;
  for (const Json& part : parts) {
    const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string() &&
                         (!part.contains("type") || part["type"] == "text");
    if (!is_text) message.refuse("content", "a string or parts of type text: this server reads no others");
    text += part["text"].get<std::string>();
  }
  return text;
}

void read_tool_calls(const Fields& fields, Json& calls) {
  if (!calls.is_array()) fields.refuse("tool_calls", "an array");
  for (Json& call : calls) {
    if (!call.is_object()) fields.refuse("tool_calls", "an array of objects");
    if (!call.contains("function") || !call["function"].is_object()) continue;
    Json& function = call["function"];
    if (function.contains("arguments") && function["arguments"].is_string()) {
      const std::string text = function["arguments"].get<std::string>();
      try {
        function["arguments"] = text.empty() ? Json::object() : parse_ordered_json(text, "arguments");
      } catch (const Error& e) {
        fields.refuse("tool_calls", std::string("arguments of a call as a JSON text; ") + e.what());
      }
    }
  }
}

// Clients give an answer back with all its fields, null where they say nothing; templates ask which are there, and add
// texts to each other.
void drop_nulls(Json& message) {
  for (auto field = message.begin(); field != message.end();)
    field = field->is_null() ? message.erase(field) : std::next(field);
}

// `developer` is what OpenAI calls the system's message since 2024; few templates know the word.
void read_role(Json& message, const Fields& fields, bool knows_developer) {
  const auto role = fields.text("role");
  if (!role) fields.refuse("role", "a string");
  if (*role == "developer" && !knows_developer) message["role"] = "system";
}

Json read_messages(const Fields& fields, bool knows_developer) {
  const Json* list = fields.find("messages");
  if (list == nullptr || !list->is_array() || list->empty() || list->size() > kMaxMessages)
    fields.refuse("messages", fmt::format("an array of 1 to {} messages", kMaxMessages));
  Json messages = *list;
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    const Fields one(message, fmt::format("messages[{}]", i));
    read_role(message, one, knows_developer);
    const bool calls = one.find("tool_calls") != nullptr;
    if (!calls && !message.contains("content")) one.refuse("content", "a string, or parts of type text");
    drop_nulls(message);
    Json& content = message["content"];
    if (content.is_null()) {
      content = "";
    } else if (content.is_array()) {
      content = text_of(one, content);
    } else if (!content.is_string()) {
      one.refuse("content", "a string, parts of type text, or null");
    }
    if (calls) read_tool_calls(one, message["tool_calls"]);
  }
  return messages;
}

// What is no function cannot be called here, and a template would show it as if it could.
void check_tools(const Fields& fields, const Json& tools) {
  if (!tools.is_array()) fields.refuse("tools", "an array");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    const Fields tool(tools[i], place);
    if (tool.text("type").value_or("function") != "function")
      tool.refuse("type", "function: this server has no tools of its own");
    const Json* function = tool.find("function");
    if (function == nullptr) tool.refuse("function", "an object with a name");
    const Fields inside(*function, place + ".function");
    if (inside.text("name").value_or("").empty()) inside.refuse("name", "a name");
    const Json* parameters = inside.find("parameters");
    if (parameters != nullptr && !parameters->is_object()) inside.refuse("parameters", "a JSON schema: an object");
  }
}

// A template closes the last message; what stands behind its text is taken away again.
std::string cut_after_last(std::string prompt, const Fields& fields, const Json& messages) {
  const Json& last = messages.back();
  if (last["role"] != "assistant" || !last.contains("content") || !last["content"].is_string())
    fields.refuse("continue_final_message", "false, or a last message of the assistant with text");
  std::string text = last["content"].get<std::string>();
  size_t at = prompt.rfind(text);
  if (at == std::string::npos) {  // templates trim
    const size_t begin = text.find_first_not_of(" \t\r\n");
    text = begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
    at = prompt.rfind(text);
  }
  if (text.empty() || at == std::string::npos)
    fields.refuse("continue_final_message", "a last message whose text the chat template shows");
  prompt.resize(at + text.size());
  return prompt;
}

}  // namespace

ChatPrompt chat_prompt(const Fields& fields, const ServedModel& model, bool bounded) {
  if (!model.chat)
    throw RequestError(400, fmt::format("{} has no chat template; /v1/completions continues bare text", model.name));
  const Json messages = read_messages(fields, model.chat->source().find("developer") != std::string::npos);
  const bool continues = fields.boolean("continue_final_message", false);
  Json extra = Json::object();
  if (const Json* more = fields.find("chat_template_kwargs")) {
    if (!more->is_object()) fields.refuse("chat_template_kwargs", "an object");
    extra = *more;
  }
  extra["add_generation_prompt"] = fields.boolean("add_generation_prompt", true) && !continues;
  const Json* choice = fields.find("tool_choice");
  if (const Json* tools = fields.find("tools"); tools != nullptr && !(choice != nullptr && *choice == "none")) {
    check_tools(fields, *tools);
    if (!tools->empty()) extra["tools"] = *tools;
    // A model that is shown no tools calls none: an answer would look as if it had not wanted to.
    if (!tools->empty() && !model.chat->shows_tools() && (choice == nullptr || *choice == "auto"))
      fields.refuse("tools", fmt::format("none, as {}'s chat template shows it no tools; a tool_choice that asks for a "
                                         "call is imposed on the answer all the same",
                                         model.name));
  }
  std::string prompt = model.chat->render_json(messages, extra);
  if (continues) prompt = cut_after_last(std::move(prompt), fields, messages);
  const size_t end = prompt.find_last_not_of(" \t\r\n");
  return {bounded ? encode_prompt(model, prompt, false) : model.tokenizer.encode(prompt, false),
          end != std::string::npos && std::string_view(prompt).substr(0, end + 1).ends_with("<think>"),
          extra.contains("tools")};
}

void leave_thinking_out(Json& chat) {
  Json& extra = chat["chat_template_kwargs"];
  if (extra.is_null()) extra = Json::object();
  if (extra.is_object() && !extra.contains("enable_thinking")) extra["enable_thinking"] = false;
}

}  // namespace fidelio::serve
