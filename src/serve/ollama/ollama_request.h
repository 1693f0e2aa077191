// This file translates Ollama's API (https://docs.ollama.com/api) into OpenAI's form.
#pragma once
#include <cstdint>
#include <string_view>

#include "serve/forms/openai_request.h"

namespace fidelio::serve {

struct OllamaRequest {
  Route route = Route::ollama_chat;
  Json body{};  // It is a chat body, or at Route::ollama_raw the body of a completion.
  // This is options.num_ctx, the most tokens of prompt and answer together; 0 means the model's context.
  int64_t context = 0;
  bool empty = false;  // If true, the client only asks for the model to be loaded, which it is.
};

// Reads a body of /api/chat or /api/generate. `template_there` says that the model has a chat template; without one a
// prompt is continued as it is. `text` is the text that the body was parsed from, so arguments of calls keep the digits
// of their numbers. Throws RequestError naming the field that is not supported.
OllamaRequest read_ollama(Route route, const Json& body, std::string_view text, bool template_there);

// Makes the answer end where prompt and answer together reach options.num_ctx.
void bound_context(int64_t context, GenerationRequest& request);

}  // namespace fidelio::serve
