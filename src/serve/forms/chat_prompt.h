// serve: messages as chat clients write them, and the prompt that the checkpoint's template makes of them.
#pragma once
#include <cstdint>
#include <vector>

#include "serve/engine_thread.h"
#include "serve/http/fields.h"

namespace fidelio::serve {

struct ChatPrompt {
  std::vector<int32_t> ids;
  bool thinking = false;  // it ends inside an opened <think>
  bool tools = false;     // it shows tools
};

// Reads messages and tools (text/conversation.h), add_generation_prompt, continue_final_message, chat_template_kwargs and
// sanitize_control_tokens (text/control_tokens.h). Throws RequestError where the checkpoint has no template; `bounded`: and
// where the prompt leaves no room for an answer.
ChatPrompt chat_prompt(const Fields& fields, const ServedModel& model, bool bounded = false);

// Asks of the template that the answer does not think, where a chat body says nothing of that itself.
void leave_thinking_out(Json& chat);

}  // namespace fidelio::serve
