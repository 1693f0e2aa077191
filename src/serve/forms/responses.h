// serve: OpenAI's Responses API, said in the words of its chat completions. Nothing is stored: a request holds its whole
// conversation as input, and whatever refers to an earlier answer is refused.
#pragma once
#include "engine/sampler.h"
#include "serve/http/fields.h"

namespace fidelio::serve {

// The chat body that asks for the same: instructions, items of input, flat tools, tool_choice, text.format. Throws
// RequestError naming the field.
Json chat_body_of_responses(const Json& body);

// What an answer repeats of its request, which chat_body_of_responses has taken; of temperature and top_p what they are.
Json repeated_in_response(const Json& body, const SamplingOptions& sampling);

}  // namespace fidelio::serve
