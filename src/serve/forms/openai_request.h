// serve: what a body of a route that generates asks for. Pure: bytes in, requests of the engine out.
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
// These routes continue a text as it is: there is no conversation, whose answer would have parts.
inline bool is_bare(Route route) { return route == Route::completions || route == Route::ollama_raw; }

struct Call {
  Route route = Route::completions;
  std::string model;  // as it is served
  bool stream = false, include_usage = false, echo = false;
  bool logprobs = false;
  Json repeated{};  // of the body, in a response
  // How the answer is taken apart (serve/parts/answer_parts.h); `tools`: calls are looked for, of these.
  Thinking thinking{};
  bool tools = false, one_call = false;
  Tools known_tools{};
  int64_t n = 1, best_of = 1;  // choices told and computed, of each prompt
  // They are each prompt's first choice; choice_of makes the others. There are none where an Ollama client asks for
  // nothing but that the model is loaded.
  std::vector<GenerationRequest> prompts;
  std::vector<std::string> prompt_texts;  // where they are echoed
  int64_t prompt_tokens() const {
    int64_t sum = 0;
    for (const GenerationRequest& request : prompts) sum += static_cast<int64_t>(request.prompt.size());
    return sum;
  }
};

// What one request may ask for.
inline constexpr int64_t kMaxChoices = 128;  // prompts times n
inline constexpr size_t kMaxStops = 16, kMaxStopBytes = 256, kMaxBiases = 1024, kMaxMessages = 4096;
inline constexpr int64_t kMaxAlternatives = 20;

// Returns a prompt's ids, which leave room for an answer: what is beyond the context is refused before it is encoded
// whole.
std::vector<int32_t> encode_prompt(const ServedModel& model, std::string_view text, bool add_special);

// Throws RequestError where the model is called by none of these names.
void check_model(const std::string& asked, const std::vector<std::string>& names);

// Throws RequestError, or Error from JSON, tokenizer and chat template, for what cannot be answered.
Call read_call(Route route, std::string_view body, const ServedModel& model, const std::vector<std::string>& names);

// The request of choice i of a prompt: its seed is the request's for the first, and follows from it for the others, so
// that choice i is the same whatever n is.
GenerationRequest choice_of(const GenerationRequest& first, int64_t i);

}  // namespace fidelio::serve
