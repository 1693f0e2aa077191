#include "serve/openai_response.h"

#include <random>

namespace fidelio::serve {
namespace {

std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string event_of(const Json& value) { return "data: " + text_of(value) + "\n\n"; }

// A token alone. Bytes are not told where it is a part of a character only.
Json token_of(const Envelope& envelope, const Piece& piece) {
  const int32_t ids[] = {piece.id};
  const std::string text = envelope.tokenizer->decode(ids, false);
  Json bytes = nullptr;
  if (text.find("\uFFFD") == std::string::npos) {
    bytes = Json::array();
    for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", text}, {"logprob", piece.logprob}, {"bytes", bytes}, {"top_logprobs", Json::array()}};
}

// Chat: {"content": [tokens]}; completions: parallel arrays.
Json logprobs_of(const Envelope& envelope, const std::vector<Piece>& pieces, size_t text_offset) {
  if (pieces.empty()) return nullptr;
  if (envelope.route == Route::chat) {
    Json content = Json::array();
    for (const Piece& piece : pieces) content.push_back(token_of(envelope, piece));
    return {{"content", content}, {"refusal", nullptr}};
  }
  Json tokens = Json::array(), logprobs = Json::array(), top = Json::array(), offsets = Json::array();
  for (const Piece& piece : pieces) {
    const Json token = token_of(envelope, piece)["token"];
    tokens.push_back(token);
    logprobs.push_back(piece.logprob);
    top.push_back({{token.get<std::string>(), piece.logprob}});
    offsets.push_back(text_offset);
    text_offset += piece.text.size();
  }
  return {{"text_offset", offsets}, {"token_logprobs", logprobs}, {"tokens", tokens}, {"top_logprobs", top}};
}

Json usage_of(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

Json envelope_of(const Envelope& e, bool chunk) {
  const char* object = e.route == Route::completions ? "text_completion"
                       : chunk                       ? "chat.completion.chunk"
                                                     : "chat.completion";
  return {{"id", e.id},
          {"object", object},
          {"created", e.created},
          {"model", e.model},
          {"system_fingerprint", e.fingerprint}};
}

Json null_or(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string chunk_of(const Envelope& e, int64_t index, Json delta, const std::string& text, Json logprobs,
                     const std::string& finish_reason) {
  Json choice = {{"index", index}};
  if (e.route == Route::chat)
    choice["delta"] = std::move(delta);
  else
    choice["text"] = text;
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = null_or(finish_reason);
  Json chunk = envelope_of(e, true);
  chunk["choices"] = Json::array({std::move(choice)});
  return event_of(chunk);
}

}  // namespace

std::string new_id(Route route) {
  thread_local std::random_device device;
  return fmt::format("{}-{:08x}{:08x}{:08x}", route == Route::chat ? "chatcmpl" : "cmpl", device(), device(), device());
}

std::string_view finish_reason_of(FinishReason reason) { return reason == FinishReason::stop ? "stop" : "length"; }

std::string whole_answer(const Envelope& e, const std::vector<Choice>& choices, const Usage& usage) {
  Json answer = envelope_of(e, false);
  Json list = Json::array();
  for (const Choice& c : choices) {
    Json choice = {{"index", c.index}};
    if (e.route == Route::chat)
      choice["message"] = {{"role", "assistant"}, {"content", c.text}};
    else
      choice["text"] = c.text;
    choice["logprobs"] = logprobs_of(e, c.pieces, 0);
    choice["finish_reason"] = c.finish_reason;
    list.push_back(std::move(choice));
  }
  answer["choices"] = std::move(list);
  answer["usage"] = usage_of(usage);
  return text_of(answer);
}

std::string opening_event(const Envelope& e, int64_t index) {
  return chunk_of(e, index, {{"role", "assistant"}, {"content", ""}}, "", nullptr, "");
}

std::string piece_event(const Envelope& e, int64_t index, const std::string& text, const std::vector<Piece>& pieces,
                        size_t text_offset) {
  return chunk_of(e, index, {{"content", text}}, text, logprobs_of(e, pieces, text_offset), "");
}

std::string finish_event(const Envelope& e, const Choice& choice) {
  return chunk_of(e, choice.index, Json::object(), "", nullptr, choice.finish_reason);
}

std::string usage_event(const Envelope& e, const Usage& usage) {
  Json chunk = envelope_of(e, true);
  chunk["choices"] = Json::array();
  chunk["usage"] = usage_of(usage);
  return event_of(chunk);
}

std::string done_event() { return "data: [DONE]\n\n"; }

}  // namespace fidelio::serve
