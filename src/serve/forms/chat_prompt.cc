#include "serve/forms/chat_prompt.h"

#include "core/foreign/json_text.h"
#include "serve/forms/answer_format.h"
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
    const Json& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const std::string text = function["arguments"].get<std::string>();
    if (!text.empty() && !is_json(text)) fields.refuse("tool_calls", "arguments of a call as a JSON text");
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

// As the services of DeepSeek, Mistral and Kimi ask for a message to be continued.
bool is_begun(const Json& last) {
  return last["role"] == "assistant" && (last.value("prefix", Json()) == true || last.value("partial", Json()) == true);
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

// What the model is known to think between, of the marks of all families.
std::vector<ThinkingMarks> known_marks(const ServedModel& model) {
  std::vector<ThinkingMarks> known;
  for (const ThinkingMarks& marks : thinking_marks())
    if (model.chat->source().find(marks.begin) != std::string::npos || model.tokenizer.id_of(marks.begin) ||
        (model.formats && model.formats->spells(marks.begin)))
      known.push_back(marks);
  return known;
}

// `text` is all that stands in the prompt of the answer's own turn, or the whole prompt.
void read_thinking(const ServedModel& model, std::string_view text, ChatPrompt& prompt) {
  const std::vector<ThinkingMarks> known = known_marks(model);
  const std::span<const ThinkingMarks> common = thinking_marks().first(1);
  prompt.thinking.marks = known;
  if (known.empty() || known.front().begin != common.front().begin)
    prompt.thinking.marks.insert(prompt.thinking.marks.begin(), common.front());
  prompt.thinking.opened = opened_by(text, thinking_marks());
  if (prompt.thinking.opened)
    prompt.imposed = prompt.thinking;
  else if (!closed_by(text, thinking_marks()))
    prompt.imposed.marks = known;
}

// A message that is to be continued may have begun a thought and not ended it.
std::optional<ThinkingMarks> thought_in(const std::string& text) {
  for (const ThinkingMarks& marks : thinking_marks()) {
    const size_t begin = text.rfind(marks.begin), end = text.rfind(marks.end);
    if (begin != std::string::npos && (end == std::string::npos || end < begin)) return marks;
  }
  return {};
}

}  // namespace

ChatPrompt chat_prompt(const Fields& fields, const ServedModel& model) {
  if (!model.chat)
    throw RequestError(400, fmt::format("{} has no chat template; /v1/completions continues bare text", model.name));
  const Json messages = read_messages(fields, model.chat->source().find("developer") != std::string::npos);
  const bool continues = fields.boolean("continue_final_message", false) || is_begun(messages.back());
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
  std::string prompt = model.chat->render_wire(messages, extra);
  if (continues) prompt = cut_after_last(std::move(prompt), fields, messages);
  ChatPrompt all{.ids = model.tokenizer.encode(prompt, false)};
  all.tools = extra.contains("tools");
  read_thinking(model, prompt, all);
  if (!continues) return all;
  // What is continued has begun to answer, unless it thinks.
  all.thinking = {.opened = thought_in(messages.back()["content"].get<std::string>())};
  all.imposed = all.thinking;
  return all;
}

void tell_template(Json& chat, const char* name, const Json& value) {
  Json& extra = chat["chat_template_kwargs"];
  if (extra.is_null()) extra = Json::object();
  if (extra.is_object() && !extra.contains(name)) extra[name] = value;
}

void leave_thinking_out(Json& chat) { tell_template(chat, "enable_thinking", false); }

}  // namespace fidelio::serve
