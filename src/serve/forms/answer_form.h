// This file writes answers, either whole or as the events of a stream. There is one form for each route that generates.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/forms/openai_request.h"
#include "serve/http/http.h"
#include "serve/parts/answer_parts.h"

namespace fidelio::serve {

// This is the state of one choice so far.
struct Choice {
  int64_t index = 0;
  size_t prompt = 0;            // It is the index of the prompt in the call.
  std::string text{};           // It is the generated text, without the echo.
  std::vector<Part> parts{};    // These are the parts of the text; for completions there is one part of kind text.
  std::vector<Piece> pieces{};  // They are kept where logprobs are wanted.
  std::string finish_reason{};  // It is one of OpenAI's words.
  std::string stop{};           // It is the stop string that ended the choice.
  bool called() const {
    for (const Part& part : parts)
      if (part.kind == Part::Kind::call) return true;
    return false;
  }
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, reused = 0, drafted = 0, accepted = 0;
  int64_t thought = 0;                    // It counts tokens of the completion.
  double seconds = 0, first_seconds = 0;  // These are the total time, and the time until the first token.
};

// These are the fields that all answers to one call share.
struct Envelope {
  std::string id, model, fingerprint;
  int64_t created = 0;
  std::shared_ptr<const ServedModel> served;
  bool include_usage = false;  // If true, the usage is sent at the end of a stream.
  Json repeated{};             // These are fields of the request that a response repeats.
};

class AnswerForm {
 public:
  virtual ~AnswerForm() = default;
  virtual std::string whole(const std::vector<Choice>& choices, const Usage& usage) = 0;
  // The functions below make the events of a stream. `pieces` are new tokens, and `parts` are the parts that they
  // completed; `choice` does not include either yet.
  virtual std::string opening(const Choice& choice, const Usage& usage) = 0;
  virtual std::string delta(const Choice& choice, const std::vector<Part>& parts, const std::vector<Piece>& pieces) = 0;
  virtual std::string finish(const Choice& choice, const Usage& usage) = 0;
  virtual std::string end(const Usage& usage) = 0;
  virtual std::string type() const { return kEvents; }   // This is the content type of the stream.
  virtual std::string ping() const { return kComment; }  // This event only says that more may come.
  virtual std::string error(const RequestError& error) = 0;
};

std::unique_ptr<AnswerForm> completion_form(Envelope envelope);
std::unique_ptr<AnswerForm> chat_form(Envelope envelope);
std::unique_ptr<AnswerForm> messages_form(Envelope envelope);
std::unique_ptr<AnswerForm> responses_form(Envelope envelope);
std::unique_ptr<AnswerForm> ollama_form(Envelope envelope, bool chat);

std::string new_id(std::string_view prefix);
// Returns a token with its alternatives, as chat and responses show it.
Json scored_token(const ServedModel& model, const Piece& piece);
std::string json_text(const Json& value);  // It replaces bytes that are not UTF-8.
// Returns a JSON text as a value that json_text writes unchanged, so no number in it passes through a double.
Json json_as_written(std::string_view text);

}  // namespace fidelio::serve
