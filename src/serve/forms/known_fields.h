// serve: the fields of bodies that would change an answer, of this server and of others whose clients may come here.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "serve/forms/openai_request.h"

namespace fidelio::serve {

// One bit for each route that generates, and one for the options inside of an Ollama body.
inline constexpr uint8_t kOfCompletions = 1, kOfChat = 2, kOfResponses = 4, kOfMessages = 8, kOfOllamaChat = 16,
                         kOfOllamaGenerate = 32, kOfOllamaOptions = 64;
uint8_t bit_of(Route route);

struct KnownField {
  const char* name;
  uint8_t routes;           // that do what it says
  const char* neutral;      // JSON: the value that says what happens anyway; empty: none but those below
  std::string_view advice;  // where it is not done
};
std::span<const KnownField> known_fields();

// A field that its route, of this bit, does not do is refused by name, unless it says what happens without it: null, false (but where
// true is neutral), an empty text or structure, or its neutral value.
void refuse_what_is_not_done(const Fields& fields, uint8_t route);

}  // namespace fidelio::serve
