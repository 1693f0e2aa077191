// serve: what Ollama's clients are told of the one model there is.
#pragma once
#include <string>
#include <string_view>

#include "serve/engine_thread.h"
#include "serve/http/fields.h"

namespace fidelio::serve {

// Its clients ask for the version of the server and compare it with what they need: this is the one whose API is spoken.
inline constexpr const char* kOllamaVersion = "0.13.0";

// Ollama names models with a tag; ours have this one.
inline constexpr const char* kOllamaTag = ":latest";

Json ollama_tags(const ServedModel& model, int64_t since);     // GET /api/tags
Json ollama_running(const ServedModel& model, int64_t since);  // GET /api/ps
Json ollama_show(const ServedModel& model, int64_t since);     // POST /api/show
Json ollama_version();                                         // GET /api/version
// Answers whoever asks for nothing but that the model is loaded.
Json ollama_loaded(const std::string& model, bool chat);

std::string ollama_time();                // now, as its answers write it
std::string ollama_time(int64_t second);  // since 1970

}  // namespace fidelio::serve
