// This file lists the fields of request bodies that would change an answer: those of this server, and those of other
// servers whose clients may connect here.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "serve/forms/openai_request.h"

namespace fidelio::serve {

// There is one bit for each route that generates, and one for the options inside an Ollama body.
inline constexpr uint8_t kOfCompletions = 1, kOfChat = 2, kOfResponses = 4, kOfMessages = 8, kOfOllamaChat = 16,
                         kOfOllamaGenerate = 32, kOfOllamaOptions = 64;
uint8_t bit_of(Route route);

struct KnownField {
  const char* name;
  uint8_t routes;           // These routes support the field.
  const char* neutral;      // This JSON value changes nothing; "" means that there is no such value except those below.
  std::string_view advice;  // It is the advice where the field is not supported.
};
std::span<const KnownField> known_fields();

// Refuses by name each field that the route of this bit does not support. Values without effect are accepted: null,
// false (unless true is neutral), an empty text or structure, or the neutral value.
void refuse_what_is_not_done(const Fields& fields, uint8_t route);

}  // namespace fidelio::serve
