// This file translates Anthropic's Messages API into OpenAI's form, since everything it can ask for a chat completion
// can ask for, too.
#pragma once
#include <string>
#include <string_view>

#include "serve/http/fields.h"

namespace fidelio::serve {

// Returns the equivalent chat body: system, text, tool_use and tool_result blocks, stop_sequences, tools, tool_choice.
// An assistant's message at the end is continued. `text` is the text that the body was parsed from, so the inputs of
// tools keep the digits of their numbers. Throws RequestError naming the field.
Json chat_body_of_messages(const Json& body, std::string_view text);

}  // namespace fidelio::serve
