#include "serve/forms/chat_prompt.h"

#include "serve/forms/openai_request.h"
#include "text/control_tokens.h"
#include "text/conversation.h"

namespace fidelio::serve {
namespace {

// What the room of texts says of a field, as a client is told it.
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

// Whether control tokens in messages are text: for all, or where a request asks for it.
bool as_text(const Fields& fields, const ServedModel& model) {
  const bool asked = fields.boolean("sanitize_control_tokens", model.sanitize_control_tokens);
  if (!asked && model.sanitize_control_tokens)
    fields.refuse("sanitize_control_tokens", "true: this server takes control tokens in messages for text");
  return asked;
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
  Json messages = read_messages(fields, *model.chat);
  const bool continues = fields.boolean("continue_final_message", false);
  Json extra = Json::object();
  if (const Json* more = fields.find("chat_template_kwargs")) {
    if (!more->is_object()) fields.refuse("chat_template_kwargs", "an object");
    extra = *more;
  }
  extra["add_generation_prompt"] = fields.boolean("add_generation_prompt", true) && !continues;
  const Json* choice = fields.find("tool_choice");
  if (const Json* tools = fields.find("tools"); tools != nullptr && !(choice != nullptr && *choice == "none")) {
    refusing([&] { check_wire_tools(*tools); });
    if (!tools->empty()) extra["tools"] = *tools;
    // A model that is shown no tools calls none: an answer would look as if it had not wanted to.
    if (!tools->empty() && !model.chat->shows_tools() && (choice == nullptr || *choice == "auto"))
      fields.refuse("tools", fmt::format("none, as {}'s chat template shows it no tools; a tool_choice that asks for a "
                                         "call is imposed on the answer all the same",
                                         model.name));
  }
  std::optional<ControlTokens> control;
  if (as_text(fields, model)) {
    control.emplace(model.tokenizer, *model.chat);
    messages = control->marked(messages);
    extra = control->marked(extra);
  }
  std::string prompt = model.chat->render_json(messages, extra);
  if (continues) prompt = cut_after_last(std::move(prompt), fields, messages);
  const size_t end = prompt.find_last_not_of(" \t\r\n");
  return {control   ? control->encode(prompt)
          : bounded ? encode_prompt(model, prompt, false)
                    : model.tokenizer.encode(prompt, false),
          end != std::string::npos && std::string_view(prompt).substr(0, end + 1).ends_with("<think>"),
          extra.contains("tools")};
}

void leave_thinking_out(Json& chat) {
  Json& extra = chat["chat_template_kwargs"];
  if (extra.is_null()) extra = Json::object();
  if (extra.is_object() && !extra.contains("enable_thinking")) extra["enable_thinking"] = false;
}

}  // namespace fidelio::serve
