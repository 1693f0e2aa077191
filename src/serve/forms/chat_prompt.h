// serve: messages as chat clients write them, and the prompt that the checkpoint's template makes of them.
#pragma once
#include <cstdint>
#include <vector>

#include "serve/engine_thread.h"
#include "serve/http/fields.h"

namespace fidelio::serve {

struct ChatPrompt {
  std::vector<int32_t> ids;
  Thinking thinking{};  // how the answer may begin
  // The same where the answer's form is imposed: there it may think if the prompt has begun a thought, or if the model is
  // known to think, by its template or its tokens.
  Thinking imposed{};
  bool tools = false;  // it shows tools
};

// Reads messages and tools (text/conversation.h), add_generation_prompt, continue_final_message, chat_template_kwargs and
// sanitize_control_tokens (text/control_tokens.h). Throws RequestError where the checkpoint has no template; `bounded`: and
// where the prompt leaves no room for an answer.
ChatPrompt chat_prompt(const Fields& fields, const ServedModel& model, bool bounded = false);

// Gives the template a variable, unless the chat body gives it one of that name itself.
void tell_template(Json& chat, const char* name, const Json& value);
// Asks of the template that the answer does not think, where a chat body says nothing of that itself.
void leave_thinking_out(Json& chat);

}  // namespace fidelio::serve
