// This file describes the one served model to Ollama's clients.
#pragma once
#include <string>
#include <string_view>

#include "serve/engine_thread.h"
#include "serve/http/fields.h"

namespace fidelio::serve {

// Clients ask for the version of the server and compare it with the one they need. This is the version whose API is
// implemented.
inline constexpr const char* kOllamaVersion = "0.13.0";

// Ollama names models with a tag; ours have this one.
inline constexpr const char* kOllamaTag = ":latest";

Json ollama_tags(const ServedModel& model, int64_t since);     // This answers GET /api/tags.
Json ollama_running(const ServedModel& model, int64_t since);  // This answers GET /api/ps.
Json ollama_show(const ServedModel& model, int64_t since);     // This answers POST /api/show.
Json ollama_version();                                         // This answers GET /api/version.
// Answers a client that only asks for the model to be loaded.
Json ollama_loaded(const std::string& model, bool chat);

std::string ollama_time();                // This is the current time in the form of Ollama's answers.
std::string ollama_time(int64_t second);  // The second is counted from 1970.

}  // namespace fidelio::serve
