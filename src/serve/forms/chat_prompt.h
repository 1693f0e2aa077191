// This file turns the messages that chat clients send into a prompt, by the checkpoint's chat template.
#pragma once
#include <cstdint>
#include <vector>

#include "serve/engine_thread.h"
#include "serve/http/fields.h"

namespace fidelio::serve {

struct ChatPrompt {
  std::vector<int32_t> ids;
  Thinking thinking{};  // It says how the answer may begin.
  // This says how an answer with an imposed form may begin. Such an answer may think only if the prompt has opened a
  // thought, or if the template or the tokens show that the model thinks.
  Thinking imposed{};
  bool tools = false;  // If true, the prompt shows tools.
};

// Reads messages and tools (text/conversation.h), add_generation_prompt, continue_final_message, chat_template_kwargs
// and sanitize_control_tokens (text/control_tokens.h). Throws RequestError where the checkpoint has no template and, if
// `bounded`, where the prompt leaves no room for an answer.
ChatPrompt chat_prompt(const Fields& fields, const ServedModel& model, bool bounded = false);

// Gives the template a variable, unless the chat body sets one of that name itself.
void tell_template(Json& chat, const char* name, const Json& value);
// Asks the template for an answer without thinking, where a chat body does not mention it itself.
void leave_thinking_out(Json& chat);
// Tells the template the effort that a client asks for. "none" asks for no thinking and other levels but "minimal" for
// some, as there are templates, such as Gemma 4's, whose models think only if they are asked to.
void tell_effort(Json& chat, const std::string& effort);

}  // namespace fidelio::serve
