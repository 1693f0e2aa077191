// serve: messages as chat clients write them, and the prompt that the checkpoint's template makes of them.
#pragma once
#include <cstdint>
#include <vector>

#include "serve/engine_thread.h"
#include "serve/fields.h"

namespace fidelio::serve {

// Reads messages, tools, add_generation_prompt, continue_final_message and chat_template_kwargs. Content in parts is
// joined where all are text, and arguments of tool calls become objects, as templates expect them. Throws RequestError
// where the checkpoint has no template.
std::vector<int32_t> chat_prompt(const Fields& fields, const ServedModel& model);

}  // namespace fidelio::serve
