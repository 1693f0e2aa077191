// This file reads the body of a route that generates. It is pure: bytes go in, and requests to the engine come out.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/sequence.h"
#include "serve/engine_thread.h"
#include "serve/http/fields.h"
#include "serve/parts/call_forms.h"

namespace fidelio::serve {

enum class Route : uint8_t { completions, chat, messages, responses, ollama_chat, ollama_generate, ollama_raw };
inline bool is_ollama(Route route) { return route >= Route::ollama_chat; }
// These routes continue a text as it is. There is no conversation, so the answer has no parts.
inline bool is_bare(Route route) { return route == Route::completions || route == Route::ollama_raw; }

struct Call {
  Route route = Route::completions;
  std::string model;  // It is the name under which the model is served.
  bool stream = false, include_usage = false, echo = false;
  bool logprobs = false;
  Json repeated{};  // These are fields of the body that a response repeats.
  // These fields say how the answer is taken apart (serve/parts/answer_parts.h). If `tools`, calls of known_tools are
  // searched.
  Thinking thinking{};
  bool tools = false, one_call = false;
  Tools known_tools{};
  int64_t n = 1, best_of = 1;  // These are the choices returned and the choices computed, for each prompt.
  // These are the first choices of each prompt; choice_of makes the others. The list is empty where an Ollama client
  // only asks for the model to be loaded.
  std::vector<GenerationRequest> prompts;
  std::vector<std::string> prompt_texts;  // They are kept where they are echoed.
  int64_t prompt_tokens() const {
    int64_t sum = 0;
    for (const GenerationRequest& request : prompts) sum += static_cast<int64_t>(request.prompt.size());
    return sum;
  }
};

// The constants below bound one request.
inline constexpr int64_t kMaxChoices = 128;  // It bounds prompts times n.
inline constexpr size_t kMaxStops = 16, kMaxStopBytes = 256, kMaxBiases = 1024, kMaxMessages = 4096;
inline constexpr int64_t kMaxAlternatives = 20;

// Returns the ids of a prompt, which leave room for an answer. A prompt beyond the context is refused before all of it
// is encoded.
std::vector<int32_t> encode_prompt(const ServedModel& model, std::string_view text, bool add_special);

// Throws RequestError if none of these names is the model's.
void check_model(const std::string& asked, const std::vector<std::string>& names);

// Reads a body. Throws RequestError, or Error from JSON, tokenizer and chat template, if it cannot be answered.
Call read_call(Route route, std::string_view body, const ServedModel& model, const std::vector<std::string>& names);

// Returns the request of choice i of a prompt. The first choice has the request's seed, and the seeds of the others
// follow from it, so choice i is the same whatever n is.
GenerationRequest choice_of(const GenerationRequest& first, int64_t i);

}  // namespace fidelio::serve
