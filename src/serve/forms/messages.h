// serve: Anthropic's Messages API, said in OpenAI's words: what it asks for is what a chat completion can ask for.
#pragma once
#include <string>
#include <string_view>

#include "serve/http/fields.h"

namespace fidelio::serve {

// The chat body that asks for the same: system, text, tool_use and tool_result blocks, stop_sequences, tools,
// tool_choice; an assistant's message at the end is continued. `text` is what the body was read from: inputs of tools keep
// the digits of their numbers. Throws RequestError naming the field.
Json chat_body_of_messages(const Json& body, std::string_view text);

}  // namespace fidelio::serve
