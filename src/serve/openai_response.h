// serve: answers in OpenAI's form, whole or as chunks of a stream.
#pragma once
#include <string>
#include <vector>

#include "serve/openai_request.h"

namespace fidelio::serve {

// One choice as far as it has come.
struct Choice {
  int64_t index = 0;
  std::string text{};           // without the echo
  std::vector<Piece> pieces{};  // where logprobs are wanted
  size_t text_bytes = 0;        // where the next piece's text begins, the echo included
  std::string finish_reason{};
};

// What all answers to one call have in common.
struct Envelope {
  std::string id, model, fingerprint;
  int64_t created = 0;
  Route route = Route::completions;
  const Tokenizer* tokenizer = nullptr;
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
};

std::string new_id(Route route);
std::string_view finish_reason_of(FinishReason reason);

std::string whole_answer(const Envelope& envelope, const std::vector<Choice>& choices, const Usage& usage);
// Events "data: {...}\n\n". opening: the role, in chat. `pieces` are the new ones, their text is `text`.
std::string opening_event(const Envelope& envelope, int64_t index);
std::string piece_event(const Envelope& envelope, int64_t index, const std::string& text,
                        const std::vector<Piece>& pieces, size_t text_offset);
std::string finish_event(const Envelope& envelope, const Choice& choice);
std::string usage_event(const Envelope& envelope, const Usage& usage);
std::string done_event();

}  // namespace fidelio::serve
