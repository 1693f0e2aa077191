// serve: how an answer is written: whole, or as the events of a stream. One form for each route that generates.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/forms/openai_request.h"
#include "serve/http/http.h"
#include "serve/parts/answer_parts.h"

namespace fidelio::serve {

// One choice as far as it has come.
struct Choice {
  int64_t index = 0;
  size_t prompt = 0;            // of the call's
  std::string text{};           // as generated, the echo not included
  std::vector<Part> parts{};    // of it; in completions one of text
  std::vector<Piece> pieces{};  // where logprobs are wanted
  std::string finish_reason{};  // OpenAI's word
  std::string stop{};           // the stop string that ended it
  bool called() const {
    for (const Part& part : parts)
      if (part.kind == Part::Kind::call) return true;
    return false;
  }
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, reused = 0, drafted = 0, accepted = 0;
  int64_t thought = 0;                    // of the completion's
  double seconds = 0, first_seconds = 0;  // it took, and until its first token
};

// What all answers to one call have in common.
struct Envelope {
  std::string id, model, fingerprint;
  int64_t created = 0;
  std::shared_ptr<const ServedModel> served;
  bool include_usage = false;  // at the end of a stream
  Json repeated{};             // of the request, in a response
};

class AnswerForm {
 public:
  virtual ~AnswerForm() = default;
  virtual std::string whole(const std::vector<Choice>& choices, const Usage& usage) = 0;
  // Events of a stream. `pieces` are new tokens, `parts` what became settled by them; `choice` has neither yet.
  virtual std::string opening(const Choice& choice, const Usage& usage) = 0;
  virtual std::string delta(const Choice& choice, const std::vector<Part>& parts, const std::vector<Piece>& pieces) = 0;
  virtual std::string finish(const Choice& choice, const Usage& usage) = 0;
  virtual std::string end(const Usage& usage) = 0;
  virtual std::string type() const { return kEvents; }   // of the stream
  virtual std::string ping() const { return kComment; }  // says nothing but that more may come
  virtual std::string error(const RequestError& error) = 0;
};

std::unique_ptr<AnswerForm> completion_form(Envelope envelope);
std::unique_ptr<AnswerForm> chat_form(Envelope envelope);
std::unique_ptr<AnswerForm> messages_form(Envelope envelope);
std::unique_ptr<AnswerForm> responses_form(Envelope envelope);
std::unique_ptr<AnswerForm> ollama_form(Envelope envelope, bool chat);

std::string new_id(std::string_view prefix);
// A token with its rivals, as chat and responses tell it.
Json scored_token(const ServedModel& model, const Piece& piece);
std::string json_text(const Json& value);  // what is not UTF-8 is replaced
// A JSON text as a value that json_text writes as it is: no number of it passes through a double.
Json json_as_written(std::string_view text);

}  // namespace fidelio::serve
