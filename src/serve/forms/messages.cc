#include "serve/forms/messages.h"

#include <algorithm>

#include "core/foreign/json_text.h"
#include "serve/forms/chat_prompt.h"
#include "serve/forms/openai_request.h"

namespace fidelio::serve {
namespace {

const Json* list_of(const Fields& fields, const char* name) {
  const Json* value = fields.find(name);
  if (value != nullptr && !value->is_array()) fields.refuse(name, "an array");
  return value;
}

// Returns a string, or blocks of type text joined.
std::string text_of(const Fields& where, const char* name, const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) where.refuse(name, "a string or an array of blocks");
  std::string text;
  for (const Json& block : content) {
    const Fields one(block, name);
    if (one.text("type").value_or("text") != "text" || !one.text("text"))
      where.refuse(name, "blocks of type text, as this server reads no others there");
    text += *one.text("text");
  }
  return text;
}

// One message may hold results of tools, which become messages of their own, before the user's text.
void add_message(Json& messages, const Json& message, size_t number, std::string_view written) {
  const Fields fields(message, fmt::format("messages[{}]", number));
  const std::string role = fields.text("role").value_or("");
  if (role != "user" && role != "assistant" && role != "system") fields.refuse("role", "user, assistant or system");
  const Json* content = fields.find("content");
  if (content == nullptr) fields.refuse("content", "a string or an array of blocks");
  if (content->is_string()) {
    messages.push_back({{"role", role}, {"content", *content}});
    return;
  }
  if (!content->is_array()) fields.refuse("content", "a string or an array of blocks");
  std::string text, thought;
  bool results = false;
  Json calls = Json::array();
  const std::vector<std::string_view> blocks = json_elements(json_member(written, "content"));
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& block = (*content)[i];
    const Fields one(block, fmt::format("messages[{}].content", number));
    const std::string type = one.text("type").value_or("");
    if (type == "text" && one.text("text")) {
      text += *one.text("text");
    } else if (type == "tool_use" && one.text("name")) {
      const std::string input(one.find("input") != nullptr ? json_member(blocks.at(i), "input") : "{}");
      calls.push_back({{"id", one.text("id").value_or("")},
                       {"type", "function"},
                       {"function", {{"name", *one.text("name")}, {"arguments", input}}}});
    } else if (type == "tool_result") {
      results = true;
      const Json* result = one.find("content");
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", one.text("tool_use_id").value_or("")},
                          {"content", result ? text_of(one, "content", *result) : ""}});
    } else if (type == "thinking" && one.text("thinking")) {
      thought += *one.text("thinking");
    } else if (type != "redacted_thinking") {
      fields.refuse("content", "blocks of type text, tool_use, tool_result or thinking: this server reads no others");
    }
  }
  if (text.empty() && calls.empty() && role == "user") {
    if (!results) fields.refuse("content", "a block with text, or a tool_result");
    return;
  }
  Json all = {{"role", role}, {"content", text}};
  if (!thought.empty()) all["reasoning_content"] = thought;
  if (!calls.empty()) all["tool_calls"] = std::move(calls);
  messages.push_back(std::move(all));
}

Json tools_of(const Fields& fields, const Json& list) {
  Json tools = Json::array();
  for (const Json& tool : list) {
    const Fields one(tool, "tools");
    if (!one.text("name")) fields.refuse("tools", "an array of objects with a name");
    if (const std::string type = one.text("type").value_or("custom"); type != "custom")
      fields.refuse("tools", fmt::format("tools of type custom: this server has no {} of its own", type));
    Json function = {{"name", *one.text("name")}};
    if (const auto text = one.text("description")) function["description"] = *text;
    const Json* schema = one.find("input_schema");
    function["parameters"] = schema ? *schema : Json{{"type", "object"}, {"properties", Json::object()}};
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

Json tool_choice_of(const Fields& fields, const Json& choice) {
  const Fields one(choice, "tool_choice");
  const std::string type = one.text("type").value_or("");
  if (type == "auto" || type == "none") return type;
  if (type == "any") return "required";
  const std::string name = one.text("name").value_or("");
  const Json* tools = fields.find("tools");
  const auto is_it = [&](const Json& tool) { return tool["name"] == name; };
  if (type == "tool" && tools != nullptr && std::any_of(tools->begin(), tools->end(), is_it))
    return {{"type", "function"}, {"function", {{"name", name}}}};
  fields.refuse("tool_choice", "type auto, any, none, or tool with the name of one of the tools");
}

// Reads "output_config": {"format": {"type": "json_schema", "schema"}} and "thinking": {"type": "disabled"}, for which
// the templates of families with optional thinking have a variable.
void read_configs(const Fields& fields, Json& chat) {
  const auto read_format = [&](const Json& format, const char* place) {
    const Fields one(format, place);
    const Json* schema = one.find("schema");
    if (one.text("type") != "json_schema" || schema == nullptr) one.refuse("schema", "a schema, with type json_schema");
    if (chat.contains("response_format")) fields.refuse(place, "none beside another form of the answer");
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "output"}, {"schema", *schema}}}};
  };
  if (const Json* config = fields.find("output_config"))
    if (const Json* format = Fields(*config, "output_config").find("format"))
      read_format(*format, "output_config.format");
  // This is the older name.
  if (const Json* format = fields.find("output_format")) read_format(*format, "output_format");
  const Json* thinking = fields.find("thinking");
  const std::string type = thinking != nullptr ? Fields(*thinking, "thinking").text("type").value_or("") : "";
  if (type == "disabled") leave_thinking_out(chat);
  if (type == "enabled" || type == "adaptive") tell_template(chat, "enable_thinking", true);
}

}  // namespace

Json chat_body_of_messages(const Json& body, std::string_view text) {
  const Fields fields(body);
  Json chat = Json::object();
  for (const char* same : {"model",
                           "stream",
                           "temperature",
                           "top_p",
                           "top_k",
                           "seed",
                           "max_tokens",
                           "min_p",
                           "ignore_eos",
                           "presence_penalty",
                           "repetition_penalty",
                           "frequency_penalty",
                           "stop_token_ids",
                           "logit_bias",
                           "skip_special_tokens",
                           "regex",
                           "min_tokens",
                           "response_format",
                           "structured_outputs",
                           "chat_template_kwargs",
                           "sanitize_control_tokens"})
    if (const Json* value = fields.find(same)) chat[same] = *value;
  read_configs(fields, chat);
  if (!fields.integer("max_tokens", 1, INT32_MAX)) fields.refuse("max_tokens", "an integer of at least 1");
  if (const Json* stops = fields.find("stop_sequences")) chat["stop_sequences"] = *stops;
  Json messages = Json::array();
  if (const Json* system = fields.find("system"))
    messages.push_back({{"role", "system"}, {"content", text_of(fields, "system", *system)}});
  const Json* list = list_of(fields, "messages");
  if (list == nullptr || list->empty() || list->size() > kMaxMessages)
    fields.refuse("messages", fmt::format("an array of 1 to {} messages", kMaxMessages));
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  const std::vector<std::string_view> written = json_elements(json_member(text, "messages"));
  for (size_t i = 0; i < list->size(); ++i) add_message(messages, (*list)[i], i, written.at(i));
  // An empty last message of the assistant does not begin an answer.
  if (messages.size() > 1 && messages.back()["role"] == "assistant" && messages.back()["content"] == "" &&
      !messages.back().contains("tool_calls"))
    messages.erase(messages.size() - 1);
  chat["continue_final_message"] =
      !messages.empty() && messages.back()["role"] == "assistant" && !messages.back().contains("tool_calls");
  chat["messages"] = std::move(messages);
  if (const Json* tools = list_of(fields, "tools")) chat["tools"] = tools_of(fields, *tools);
  if (const Json* choice = fields.find("tool_choice")) {
    chat["tool_choice"] = tool_choice_of(fields, *choice);
    chat["parallel_tool_calls"] = !Fields(*choice, "tool_choice").boolean("disable_parallel_tool_use", false);
  }
  return chat;
}

}  // namespace fidelio::serve
