#include "serve/forms/chat_prompt.h"

#include "serve/forms/answer_format.h"
#include "serve/forms/openai_request.h"
#include "text/control_tokens.h"
#include "text/conversation.h"
#include "text/history.h"

namespace fidelio::serve {
namespace {

// Turns a field error of the text layer into a refusal for the client.
template <typename Read>
auto refusing(Read&& read) {
  try {
    return read();
  } catch (const FieldError& e) {
    throw RequestError(400, e.what(), e.field());
  }
}

Json read_messages(const Fields& fields, const ChatTemplate& chat) {
  const Json* list = fields.find("messages");
  if (list == nullptr || !list->is_array() || list->empty() || list->size() > kMaxMessages)
    fields.refuse("messages", fmt::format("an array of 1 to {} messages", kMaxMessages));
  return refusing([&] { return wire_messages(*list, chat); });
}

// Returns whether control tokens in messages are plain text, either for all requests or because this one asks for it.
bool as_text(const Fields& fields, const ServedModel& model) {
  const bool asked = fields.boolean("sanitize_control_tokens", model.sanitize_control_tokens);
  if (!asked && model.sanitize_control_tokens)
    fields.refuse("sanitize_control_tokens", "true: this server takes control tokens in messages for text");
  return asked;
}

// A last message is to be continued if it is marked as the services of DeepSeek, Mistral and Kimi mark it.
bool is_begun(const Json& last) {
  return last["role"] == "assistant" && (last.value("prefix", Json()) == true || last.value("partial", Json()) == true);
}

// A template closes the last message, so everything after the message's text is cut off again.
std::string cut_after_last(std::string prompt, const Fields& fields, const Json& messages) {
  const Json& last = messages.back();
  if (last["role"] != "assistant" || !last.contains("content") || !last["content"].is_string())
    fields.refuse("continue_final_message", "false, or a last message of the assistant with text");
  std::string text = last["content"].get<std::string>();
  size_t at = prompt.rfind(text);
  if (at == std::string::npos) {  // Templates trim texts.
    const size_t begin = text.find_first_not_of(" \t\r\n");
    text = begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
    at = prompt.rfind(text);
  }
  if (text.empty() || at == std::string::npos)
    fields.refuse("continue_final_message", "a last message whose text the chat template shows");
  prompt.resize(at + text.size());
  return prompt;
}

// Picks from the thinking marks of all families those that this model is known to use.
std::vector<ThinkingMarks> known_marks(const ServedModel& model) {
  std::vector<ThinkingMarks> known;
  for (const ThinkingMarks& marks : thinking_marks())
    if (model.chat->source().find(marks.begin) != std::string::npos || model.tokenizer.id_of(marks.begin) ||
        (model.formats && model.formats->spells(marks.begin)))
      known.push_back(marks);
  return known;
}

// `text` is the part of the prompt that belongs to the answer's own turn, or the whole prompt.
void read_thinking(const ServedModel& model, std::string_view text, ChatPrompt& prompt) {
  if (auto channels = channels_of(*model.chat, model.tokenizer, text)) {
    prompt.thinking.channels = std::move(channels);
    prompt.imposed = prompt.thinking;
    return;
  }
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

// A message that is to be continued may have opened a thought without closing it.
std::optional<ThinkingMarks> thought_in(const std::string& text) {
  for (const ThinkingMarks& marks : thinking_marks()) {
    const size_t begin = text.rfind(marks.begin), end = text.rfind(marks.end);
    if (begin != std::string::npos && (end == std::string::npos || end < begin)) return marks;
  }
  return {};
}

// gpt-oss knows the efforts low, medium and high, and always thinks, so that it is asked for little thinking where none
// is wanted.
void name_effort_of_channels(Json& extra) {
  if (!extra.contains("reasoning_effort") && extra.value("enable_thinking", Json()) == false)
    extra["reasoning_effort"] = "low";
  const auto effort = extra.find("reasoning_effort");
  if (effort == extra.end()) return;
  if (*effort == "none" || *effort == "minimal") *effort = "low";
  if (*effort == "xhigh" || *effort == "max") *effort = "high";
}

// Clients know levels of effort under names that a template may refuse. Qwen3.8's templates know xhigh, medium and low
// alone; Qwen's own service takes high and max as xhigh and minimal as low there.
void name_effort(const ChatTemplate& chat, Json& extra) {
  if (writes_channels(chat.source())) return name_effort_of_channels(extra);
  const auto knows = [&](const std::string& level) {
    return chat.source().find("'" + level + "'") != std::string::npos ||
           chat.source().find('"' + level + '"') != std::string::npos;
  };
  const auto effort = extra.find("reasoning_effort");
  if (effort == extra.end() || !effort->is_string() || !knows("xhigh")) return;
  const std::string level = *effort;
  if (knows(level)) return;
  if (level == "high" || level == "max") *effort = "xhigh";
  if (level == "minimal" && knows("low")) *effort = "low";
}

}  // namespace

ChatPrompt chat_prompt(const Fields& fields, const ServedModel& model, bool bounded) {
  if (!model.chat)
    throw RequestError(400, fmt::format("{} has no chat template; /v1/completions continues bare text", model.name));
  Json messages = read_messages(fields, *model.chat);
  const bool continues = fields.boolean("continue_final_message", false) || is_begun(messages.back());
  Json extra = Json::object();
  if (const Json* more = fields.find("chat_template_kwargs")) {
    if (!more->is_object()) fields.refuse("chat_template_kwargs", "an object");
    extra = *more;
    name_effort(*model.chat, extra);
  }
  extra["add_generation_prompt"] = fields.boolean("add_generation_prompt", true) && !continues;
  const Json* choice = fields.find("tool_choice");
  if (const Json* tools = fields.find("tools"); tools != nullptr && !(choice != nullptr && *choice == "none")) {
    refusing([&] { check_wire_tools(*tools); });
    if (!tools->empty()) extra["tools"] = shown_tools(*tools, model.chat->source());
    // A model that is shown no tools calls none, and its answer would look as if it had not wanted to.
    if (!tools->empty() && !model.chat->shows_tools() && (choice == nullptr || *choice == "auto"))
      fields.refuse("tools", fmt::format("none, as {}'s chat template shows it no tools; a tool_choice that asks for a "
                                         "call is imposed on the answer all the same",
                                         model.name));
  }
  std::optional<ControlTokens> control;
  TextMark mark;
  if (as_text(fields, model)) {
    control.emplace(model.tokenizer, *model.chat);
    messages = control->marked_messages(messages);
    extra = control->marked(extra);
    mark = [&control](const std::string& text) { return control->mark(text); };
  }
  std::string prompt = model.chat->render_wire(messages, extra, mark);
  if (continues) prompt = cut_after_last(std::move(prompt), fields, messages);
  ChatPrompt all{.ids = control   ? control->encode(prompt)
                        : bounded ? encode_prompt(model, prompt, false)
                                  : model.tokenizer.encode(prompt, false)};
  all.tools = extra.contains("tools");
  read_thinking(model, prompt, all);
  if (!continues || all.thinking.channels) return all;
  // A continued message has begun to answer, unless it is still inside a thought.
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

void tell_effort(Json& chat, const std::string& effort) {
  if (effort == "none")
    leave_thinking_out(chat);
  else if (effort != "minimal")
    tell_template(chat, "enable_thinking", true);
  tell_template(chat, "reasoning_effort", effort);
}

}  // namespace fidelio::serve
