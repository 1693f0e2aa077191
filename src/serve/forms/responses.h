// This file translates OpenAI's Responses API into the form of its chat completions. Nothing is stored: a request holds
// its whole conversation as input, and references to earlier answers are refused.
#pragma once
#include "engine/sampler.h"
#include "serve/http/fields.h"

namespace fidelio::serve {

// Returns the equivalent chat body: instructions, items of input, flat tools, tool_choice, text.format. Throws
// RequestError naming the field.
Json chat_body_of_responses(const Json& body);

// Returns the fields of the request that an answer repeats, after chat_body_of_responses has accepted it. temperature
// and top_p are given with the values in use.
Json repeated_in_response(const Json& body, const SamplingOptions& sampling);

}  // namespace fidelio::serve
