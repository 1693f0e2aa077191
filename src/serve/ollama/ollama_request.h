// serve: Ollama's API (https://docs.ollama.com/api), said in OpenAI's words.
#pragma once
#include <cstdint>
#include <string_view>

#include "serve/forms/openai_request.h"

namespace fidelio::serve {

struct OllamaRequest {
  Route route = Route::ollama_chat;
  Json body{};          // of a chat; at Route::ollama_raw of a completion
  int64_t context = 0;  // options.num_ctx: prompt and answer together have at most so many tokens; 0: the model's
  bool empty = false;   // nothing is asked but that the model is loaded, which it is
};

// Reads what /api/chat or /api/generate asks for. `template_there`: the model has a chat template; without one a prompt
// is continued as it is. `text` is what the body was read from: arguments of calls keep the digits of their numbers. Throws
// RequestError naming the field that cannot be done.
OllamaRequest read_ollama(Route route, const Json& body, std::string_view text, bool template_there);

// Makes the answer end where options.num_ctx says that prompt and answer together do.
void bound_context(int64_t context, GenerationRequest& request);

}  // namespace fidelio::serve
