#include "serve/ollama/ollama_request.h"

#include <algorithm>
#include <deque>

#include "core/foreign/json_text.h"
#include "serve/forms/known_fields.h"

namespace fidelio::serve {
namespace {

void refuse_images(const Fields& fields) {
  const Json* images = fields.find("images");
  if (images != nullptr && !(images->is_array() && images->empty()))
    fields.refuse("images", "none: this server reads text alone");
}

// repeat_last_n says how far back a penalty for repetition looks. Here it covers the whole text, or nothing if it is 0.
void read_penalty(const Fields& options, Json& chat) {
  const auto penalty = options.number("repeat_penalty", 1e-3, 1e6);
  const auto reach = options.integer("repeat_last_n", -1, INT32_MAX);
  if (!penalty || *penalty == 1) {
    if (penalty) chat["repetition_penalty"] = 1;
    return;
  }
  if (reach.value_or(-1) > 0)
    options.refuse("repeat_last_n", "-1 (a repeat_penalty looks at the whole text here), or 0 for none");
  if (options.find("penalize_newline") != nullptr && !options.boolean("penalize_newline", true))
    options.refuse("penalize_newline", "true: a repeat_penalty spares no token here");
  chat["repetition_penalty"] = reach == 0 ? 1 : *penalty;
}

// Options that change an answer are read. Threads, batches and devices are decided by the server alone.
void read_options(const Fields& fields, Json& chat, int64_t& context) {
  const Json* value = fields.find("options");
  if (value == nullptr) return;
  const Fields options(*value, "options");
  for (const char* same :
       {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty"})
    if (const Json* one = options.find(same)) chat[same] = *one;
  if (const auto most = options.integer("num_predict", -2, INT32_MAX)) chat["max_tokens"] = *most <= 0 ? -1 : *most;
  context = options.integer("num_ctx", 1, INT32_MAX).value_or(0);
  read_penalty(options, chat);
  Json others = *value;
  for (const char* read : {"repeat_penalty", "repeat_last_n"}) others.erase(read);
  refuse_what_is_not_done(Fields(others, "options"), kOfOllamaOptions);
}

void read_form(const Fields& fields, Json& chat) {
  const Json* format = fields.find("format");
  if (format == nullptr || *format == "") return;
  if (*format == "json")
    chat["response_format"] = {{"type", "json_object"}};
  else if (format->is_object())
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "format"}, {"schema", *format}}}};
  else
    fields.refuse("format", "\"json\" or a JSON schema");
}

// A level of effort asks for thinking and is also a variable that some templates read.
void read_think(const Fields& fields, Json& chat) {
  const Json* think = fields.find("think");
  if (think == nullptr) return;
  const bool level = *think == "low" || *think == "medium" || *think == "high";
  if (!think->is_boolean() && !level) fields.refuse("think", "true, false, low, medium or high");
  chat["chat_template_kwargs"] = {{"enable_thinking", *think != Json(false)}};
  if (level) chat["chat_template_kwargs"]["reasoning_effort"] = *think;
}

// Ollama's calls have no ids, which some templates need, so ids are given in order, as results come in the order of the
// calls. Arguments are objects here, and JSON texts in OpenAI's form.
void read_message(const Fields& fields, Json& message, std::string_view written, std::deque<std::string>& open_calls) {
  refuse_images(fields);
  message.erase("images");
  if (!message.contains("content") || message["content"].is_null()) message["content"] = "";
  if (const auto thought = fields.text("thinking")) message["reasoning_content"] = *thought;
  message.erase("thinking");
  if (const auto name = fields.text("tool_name")) message["name"] = *name;
  message.erase("tool_name");
  if (fields.text("role") == "tool" && !message.contains("tool_call_id") && !open_calls.empty()) {
    message["tool_call_id"] = open_calls.front();
    open_calls.pop_front();
  }
  const Json* calls = fields.find("tool_calls");
  if (calls == nullptr) return;
  if (!calls->is_array()) fields.refuse("tool_calls", "an array");
  if (calls->empty()) {
    message.erase("tool_calls");
    return;
  }
  open_calls.clear();
  const std::vector<std::string_view> texts = json_elements(json_member(written, "tool_calls"));
  for (size_t i = 0; i < texts.size(); ++i) {
    Json& call = message["tool_calls"][i];
    if (!call.is_object()) fields.refuse("tool_calls", "an array of objects");
    call["type"] = "function";
    if (!call.contains("id")) call["id"] = fmt::format("call{:05}", open_calls.size());
    if (call.contains("function") && call["function"].is_object() && call["function"].contains("arguments") &&
        call["function"]["arguments"].is_structured())
      call["function"]["arguments"] = std::string(json_member(json_member(texts[i], "function"), "arguments"));
    open_calls.push_back(call["id"].is_string() ? call["id"].get<std::string>() : "");
  }
}

Json read_messages_of_ollama(const Fields& fields, std::string_view text) {
  const Json* list = fields.find("messages");
  if (list == nullptr) return Json::array();
  if (!list->is_array()) fields.refuse("messages", "an array of messages");
  Json messages = *list;
  std::deque<std::string> open_calls;
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  const std::vector<std::string_view> written = json_elements(json_member(text, "messages"));
  for (size_t i = 0; i < messages.size(); ++i)
    read_message(Fields((*list)[i], fmt::format("messages[{}]", i)), messages[i], written.at(i), open_calls);
  return messages;
}

// A prompt is a user's message, unless it is raw or there is no template to put it in.
void read_generate(const Fields& fields, bool template_there, OllamaRequest& read) {
  refuse_images(fields);
  if (fields.find("template") != nullptr && *fields.find("template") != "")
    fields.refuse("template", "none: the checkpoint's is used; with raw true the prompt stands as it is");
  if (const Json* ids = fields.find("context"); ids != nullptr && !ids->empty())
    fields.refuse("context", "none: give the conversation as messages to /api/chat");
  const std::string prompt = fields.text("prompt").value_or(""), system = fields.text("system").value_or("");
  read.empty = prompt.empty();
  if (fields.boolean("raw", false) || !template_there) {
    if (!system.empty()) fields.refuse("system", "none where the prompt is raw or the model has no chat template");
    if (fields.boolean("sanitize_control_tokens", false))
      fields.refuse("sanitize_control_tokens", "false where the prompt is continued as it is");
    read.route = Route::ollama_raw;
    read.body["prompt"] = prompt;
    return;
  }
  Json messages = Json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", prompt}});
  read.body["messages"] = std::move(messages);
}

}  // namespace

OllamaRequest read_ollama(Route route, const Json& body, std::string_view text, bool template_there) {
  const Fields fields(body);
  refuse_what_is_not_done(fields, bit_of(route));
  OllamaRequest read;
  read.route = route;
  for (const char* same : {"model", "logprobs", "top_logprobs", "sanitize_control_tokens"})
    if (const Json* value = fields.find(same)) read.body[same] = *value;
  read.body["stream"] = fields.boolean("stream", true);
  read_options(fields, read.body, read.context);
  read_form(fields, read.body);
  read_think(fields, read.body);
  if (route == Route::ollama_generate) {
    read_generate(fields, template_there, read);
  } else {
    read.body["messages"] = read_messages_of_ollama(fields, text);
    read.empty = read.body["messages"].empty();
    if (const Json* tools = fields.find("tools")) read.body["tools"] = *tools;
  }
  return read;
}

void bound_context(int64_t context, GenerationRequest& request) {
  if (context == 0) return;
  const int64_t prompt = std::ssize(request.prompt);
  if (prompt >= context)
    throw RequestError(400,
                       fmt::format("options.num_ctx: the prompt has {} tokens, so that {} leave no room for an answer",
                                   prompt, context),
                       "options.num_ctx", "context_length_exceeded");
  request.max_tokens = std::min(request.max_tokens, context - prompt);
}

}  // namespace fidelio::serve
