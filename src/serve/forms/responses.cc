#include "serve/forms/responses.h"

#include <algorithm>
#include <utility>

#include "core/foreign/json_text.h"
#include "serve/forms/chat_prompt.h"
#include "serve/forms/openai_request.h"

namespace fidelio::serve {
namespace {

// A request that refers to stored items would be answered without them, so it is refused.
void refuse_what_is_stored(const Fields& fields) {
  for (const char* stored : {"previous_response_id", "conversation", "prompt"})
    if (fields.find(stored) != nullptr)
      fields.refuse(stored, "none: nothing is stored here, give the whole conversation as input");
  if (fields.boolean("background", false))
    fields.refuse("background", "false: nothing is stored here, an answer is told while its client waits");
  fields.boolean("store", false);
}

// Returns a text, or the joined parts of type input_text and output_text.
std::string text_of_parts(const Fields& item, const std::string& place, const char* name) {
  const Json* content = item.find(name);
  if (content != nullptr && content->is_string()) return content->get<std::string>();
  if (content == nullptr || !content->is_array()) item.refuse(name, "a string or an array of parts");
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Fields part((*content)[i], fmt::format("{}.{}[{}]", place, name, i));
    const std::string type = part.text("type").value_or("");
    if (type != "input_text" && type != "output_text")
      part.refuse("type", fmt::format("input_text or output_text: this server reads no {}", type));
    if (!part.text("text")) part.refuse("text", "a string");
    text += *part.text("text");
  }
  return text;
}

// A call belongs to the assistant's text before it; several calls make one message.
void add_function_call(Json& messages, const Fields& item) {
  const std::string name = item.text("name").value_or(""), arguments = item.text("arguments").value_or("");
  if (name.empty()) item.refuse("name", "a name");
  if (!arguments.empty() && !is_json(arguments)) item.refuse("arguments", "a JSON text");
  if (messages.empty() || messages.back()["role"] != "assistant")
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  messages.back()["tool_calls"].push_back({{"id", item.text("call_id").value_or("")},
                                           {"type", "function"},
                                           {"function", {{"name", name}, {"arguments", arguments}}}});
}

// Returns the thought in an item of type reasoning. Some templates show it again while tools are called.
std::string thought_of(const Fields& item) {
  std::string text;
  const Json* content = item.find("content");
  if (content == nullptr || !content->is_array()) return text;
  for (const Json& part : *content) {
    if (!part.is_object()) item.refuse("content", "an array of parts");
    text += Fields(part).text("text").value_or("");
  }
  return text;
}

// A thought belongs to the assistant's text or call after it.
void add_item(Json& messages, const Json& item, size_t number, std::string& thought) {
  const std::string place = fmt::format("input[{}]", number);
  const Fields fields(item, place);
  const std::string type = fields.text("type").value_or("message");
  if (type == "reasoning") {
    thought += (thought.empty() ? "" : "\n\n") + thought_of(fields);
    return;
  }
  const std::string before = std::exchange(thought, {});
  if (type == "message") {
    const std::string role = fields.text("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer")
      fields.refuse("role", "user, assistant, system or developer");
    messages.push_back({{"role", role}, {"content", text_of_parts(fields, place, "content")}});
  } else if (type == "function_call") {
    add_function_call(messages, fields);
  } else if (type == "function_call_output") {
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", fields.text("call_id").value_or("")},
                        {"content", text_of_parts(fields, place, "output")}});
  } else {
    fields.refuse(
        "type",
        fmt::format("message, function_call, function_call_output or reasoning: this server reads no {}", type));
  }
  if (before.empty() || messages.back()["role"] != "assistant") return;
  const std::string earlier = messages.back().value("reasoning_content", "");
  messages.back()["reasoning_content"] = earlier + (earlier.empty() ? "" : "\n\n") + before;
}

Json messages_of_input(const Fields& fields) {
  Json messages = Json::array();
  std::string thought;
  if (const auto instructions = fields.text("instructions"))
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  const size_t before = messages.size();
  const Json* input = fields.find("input");
  if (input != nullptr && input->is_string()) messages.push_back({{"role", "user"}, {"content", *input}});
  if (input != nullptr && input->is_array() && input->size() <= kMaxMessages)
    for (size_t i = 0; i < input->size(); ++i) add_item(messages, (*input)[i], i, thought);
  if (messages.size() == before)
    fields.refuse("input", fmt::format("a string, or an array of 1 to {} items with a message", kMaxMessages - 1));
  return messages;
}

// Reads {"type": "function", "name", "description", "parameters", "strict"}, which chat bodies have one level deeper.
Json functions_of(const Fields& fields) {
  const Json* list = fields.find("tools");
  Json tools = Json::array();
  if (list != nullptr && !list->is_array()) fields.refuse("tools", "an array");
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const Fields one((*list)[i], fmt::format("tools[{}]", i));
    if (const std::string type = one.text("type").value_or(""); type != "function")
      one.refuse("type", fmt::format("function: this server has no {} of its own", type));
    if (one.text("name").value_or("").empty()) one.refuse("name", "a name");
    if (const Json* parameters = one.find("parameters"); parameters != nullptr && !parameters->is_object())
      one.refuse("parameters", "a JSON schema: an object");
    Json function = Json::object();
    for (const char* same : {"name", "description", "parameters", "strict"})
      if (const Json* value = one.find(same)) function[same] = *value;
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

Json choice_of_tool(const Fields& fields, const Json& choice, const Json& tools) {
  if (choice == "auto" || choice == "none" || choice == "required") return choice;
  const std::string expected =
      R"(auto, none, required, {"type": "function", "name"} of one of the tools, or {"type": "allowed_tools", "mode", "tools"})";
  if (!choice.is_object()) fields.refuse("tool_choice", expected);
  const auto in_chat = [&](const Json& tool) -> Json {
    const Fields one(tool, "tool_choice");
    const std::string name = one.text("name").value_or("");
    const auto is_it = [&](const Json& known) { return known["function"]["name"] == name; };
    if (one.text("type") != "function" || std::none_of(tools.begin(), tools.end(), is_it))
      fields.refuse("tool_choice", expected);
    return {{"type", "function"}, {"function", {{"name", name}}}};
  };
  const Fields inside(choice, "tool_choice");
  if (inside.text("type") != "allowed_tools") return in_chat(choice);
  const Json* list = inside.find("tools");
  if (list == nullptr || !list->is_array() || list->empty()) inside.refuse("tools", "an array of some of the tools");
  const std::string mode = inside.text("mode").value_or("auto");
  if (mode != "auto" && mode != "required") inside.refuse("mode", "auto or required");
  Json allowed = Json::array();
  for (const Json& tool : *list) allowed.push_back(in_chat(tool));
  return {{"type", "allowed_tools"}, {"allowed_tools", {{"mode", mode}, {"tools", std::move(allowed)}}}};
}

void read_text_format(const Fields& fields, Json& chat) {
  const Json* text = fields.find("text");
  const Json* format = text == nullptr ? nullptr : Fields(*text, "text").find("format");
  if (format == nullptr) return;
  const Fields one(*format, "text.format");
  const std::string type = one.text("type").value_or("");
  if (type != "text" && type != "json_object" && type != "json_schema")
    one.refuse("type", "text, json_object or json_schema");
  chat["response_format"] = {{"type", type}};
  if (type != "json_schema") return;
  const Json* schema = one.find("schema");
  if (schema == nullptr) one.refuse("schema", "a schema");
  chat["response_format"]["json_schema"] = {{"schema", *schema}};
}

// Only one of the values that can be included is supported here.
void read_include(const Fields& fields, Json& chat) {
  chat["logprobs"] = fields.integer("top_logprobs", 0, kMaxAlternatives).value_or(0) > 0;
  const Json* include = fields.find("include");
  if (include == nullptr) return;
  if (!include->is_array()) fields.refuse("include", "an array of strings");
  for (const Json& name : *include) {
    if (!name.is_string()) fields.refuse("include", "an array of strings");
    if (name == "message.output_text.logprobs") chat["logprobs"] = true;
  }
}

void check_object(const Fields& fields, const char* name) {
  if (const Json* value = fields.find(name); value != nullptr && !value->is_object()) fields.refuse(name, "an object");
}

}  // namespace

Json chat_body_of_responses(const Json& body) {
  const Fields fields(body);
  refuse_what_is_stored(fields);
  Json chat = Json::object();
  for (const char* same : {"model",
                           "stream",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "repetition_penalty",
                           "presence_penalty",
                           "frequency_penalty",
                           "logit_bias",
                           "seed",
                           "stop",
                           "stop_token_ids",
                           "ignore_eos",
                           "skip_special_tokens",
                           "regex",
                           "structured_outputs",
                           "min_tokens",
                           "top_logprobs",
                           "parallel_tool_calls",
                           "chat_template_kwargs",
                           "sanitize_control_tokens"})
    if (const Json* value = fields.find(same)) chat[same] = *value;
  if (const auto most = fields.integer("max_output_tokens", 1, INT32_MAX)) chat["max_completion_tokens"] = *most;
  chat["messages"] = messages_of_input(fields);
  if (Json tools = functions_of(fields); !tools.empty()) chat["tools"] = std::move(tools);
  if (const Json* choice = fields.find("tool_choice"))
    chat["tool_choice"] = choice_of_tool(fields, *choice, chat.value("tools", Json::array()));
  read_text_format(fields, chat);
  read_include(fields, chat);
  for (const char* object : {"metadata", "reasoning"}) check_object(fields, object);
  if (const Json* reasoning = fields.find("reasoning"))
    if (const auto effort = Fields(*reasoning, "reasoning").text("effort")) tell_effort(chat, *effort);
  for (const char* text : {"user", "truncation"}) fields.text(text);
  return chat;
}

Json repeated_in_response(const Json& body, const SamplingOptions& sampling) {
  const Fields fields(body);
  const auto given = [&](const char* name, Json otherwise) {
    const Json* value = fields.find(name);
    return value == nullptr ? std::move(otherwise) : *value;
  };
  Json text = given("text", Json::object());
  if (!text.contains("format") || text["format"].is_null()) text["format"] = {{"type", "text"}};
  return {{"background", false},
          {"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"max_tool_calls", nullptr},
          {"metadata", given("metadata", Json::object())},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", nullptr},
          {"reasoning", given("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"service_tier", "default"},
          {"store", false},
          {"temperature", sampling.temperature},
          {"text", std::move(text)},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_logprobs", given("top_logprobs", 0)},
          {"top_p", given("top_p", sampling.top_p)},
          {"truncation", "disabled"},
          {"user", given("user", nullptr)}};
}

}  // namespace fidelio::serve
