#include <algorithm>
#include <random>

#include "serve/forms/answer_form.h"
#include "text/tokenizer/unicode.h"

namespace fidelio::serve {

namespace {

void write_json(const Json& value, std::string& out) {
  const auto dumped = [](const Json& one) { return one.dump(-1, ' ', false, Json::error_handler_t::replace); };
  if (value.is_binary()) {
    const Json::binary_t& text = value.get_binary();
    out.append(text.begin(), text.end());
  } else if (value.is_object()) {
    out += '{';
    for (auto member = value.begin(); member != value.end(); ++member) {
      if (member != value.begin()) out += ',';
      out += dumped(member.key()) + ':';
      write_json(*member, out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ',';
      write_json(value[i], out);
    }
    out += ']';
  } else {
    out += dumped(value);
  }
}

}  // namespace

std::string json_text(const Json& value) {
  std::string out;
  write_json(value, out);
  return out;
}

Json json_as_written(std::string_view text) { return Json::binary({text.begin(), text.end()}); }

std::string new_id(std::string_view prefix) {
  thread_local std::random_device device;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, device(), device(), device());
}

namespace {

std::string event_of(const Json& value) { return "data: " + json_text(value) + "\n\n"; }

// Returns a token's name, which is its text. If the token is a part of a character, it is its bytes, as OpenAI spells
// them.
std::string name_of(const ServedModel& model, int32_t id) {
  const std::string& bytes = model.tokens->bytes(id);
  if (bytes.empty()) return model.tokenizer.decode({&id, 1}, false);
  if (tokenization::is_valid_utf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

Json token_of(const ServedModel& model, const TokenScore& score) {
  std::string bytes = model.tokens->bytes(score.id);
  const std::string name = name_of(model, score.id);
  if (bytes.empty()) bytes = name;  // This is a special token.
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", name}, {"logprob", score.logprob}, {"bytes", list}};
}

}  // namespace

Json scored_token(const ServedModel& model, const Piece& piece) {
  Json token = token_of(model, {piece.id, piece.logprob});
  token["top_logprobs"] = Json::array();
  for (const TokenScore& score : piece.best) token["top_logprobs"].push_back(token_of(model, score));
  token["drafted"] = piece.drafted;
  return token;
}

namespace {

Json usage_of(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.reused}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", usage.thought},
            {"accepted_prediction_tokens", usage.accepted},
            {"rejected_prediction_tokens", usage.drafted - usage.accepted}}}};
}

Json null_or(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

class OpenAiForm : public AnswerForm {
 public:
  explicit OpenAiForm(Envelope envelope) : e_(std::move(envelope)) {}

  std::string whole(const std::vector<Choice>& choices, const Usage& usage) override {
    Json answer = head(false);
    Json list = Json::array();
    for (const Choice& c : choices) {
      Json choice = {{"index", c.index}};
      add_message(choice, c);
      choice["logprobs"] = logprobs(c.pieces);
      choice["finish_reason"] = reason(c);
      choice["stop_reason"] = null_or(c.stop);
      list.push_back(std::move(choice));
    }
    answer["choices"] = std::move(list);
    answer["usage"] = usage_of(usage);
    return json_text(answer);
  }
  std::string finish(const Choice& c, const Usage&) override {
    Json choice = bare(c.index);
    choice["finish_reason"] = reason(c);
    choice["stop_reason"] = null_or(c.stop);
    return chunk(std::move(choice));
  }
  std::string end(const Usage& usage) override {
    const std::string done = "data: [DONE]\n\n";
    if (!e_.include_usage) return done;
    Json last = head(true);
    last["choices"] = Json::array();
    last["usage"] = usage_of(usage);
    return event_of(last) + done;
  }
  std::string error(const RequestError& error) override {
    return "data: " + error_body(error.status(), error.what(), error.param(), error.code()) + "\n\n";
  }

 protected:
  virtual const char* object(bool chunk) const = 0;
  virtual void add_message(Json& choice, const Choice& c) const = 0;
  virtual Json bare(int64_t index) const = 0;  // It makes a choice of a chunk without content.
  virtual Json logprobs(const std::vector<Piece>& pieces) const = 0;
  static std::string reason(const Choice& c) {
    return c.finish_reason == "stop" && c.called() ? "tool_calls" : c.finish_reason;
  }

  Json head(bool chunk) const {
    return {{"id", e_.id},
            {"object", object(chunk)},
            {"created", e_.created},
            {"model", e_.model},
            {"system_fingerprint", e_.fingerprint}};
  }
  std::string chunk(Json choice) const {
    Json all = head(true);
    all["choices"] = Json::array({std::move(choice)});
    if (e_.include_usage) all["usage"] = nullptr;  // The usage comes last.
    return event_of(all);
  }
  Envelope e_;
};

class CompletionForm final : public OpenAiForm {
 public:
  using OpenAiForm::OpenAiForm;
  std::string opening(const Choice&, const Usage&) override { return ""; }
  std::string delta(const Choice& c, const std::vector<Part>& parts, const std::vector<Piece>& pieces) override {
    Json choice = bare(c.index);
    choice["text"] = parts.empty() ? "" : parts[0].text;
    choice["logprobs"] = logprobs(pieces);
    return chunk(std::move(choice));
  }

 private:
  const char* object(bool) const override { return "text_completion"; }
  void add_message(Json& choice, const Choice& c) const override {
    choice["text"] = c.parts.empty() ? "" : c.parts[0].text;
  }
  Json bare(int64_t index) const override {
    return {{"index", index}, {"text", ""}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  }
  // Returns parallel arrays. The first token of a prompt has no probability.
  Json logprobs(const std::vector<Piece>& pieces) const override {
    if (pieces.empty()) return nullptr;
    Json tokens = Json::array(), logprobs = Json::array(), best = Json::array(), offsets = Json::array();
    for (const Piece& piece : pieces) {
      tokens.push_back(name_of(*e_.served, piece.id));
      logprobs.push_back(piece.scored ? Json(piece.logprob) : Json(nullptr));
      Json row = Json::object();
      for (const TokenScore& score : piece.best) row[name_of(*e_.served, score.id)] = score.logprob;
      row[name_of(*e_.served, piece.id)] = piece.logprob;
      best.push_back(piece.scored ? row : Json(nullptr));
      offsets.push_back(piece.offset);
    }
    return {{"text_offset", offsets}, {"token_logprobs", logprobs}, {"tokens", tokens}, {"top_logprobs", best}};
  }
};

class ChatForm final : public OpenAiForm {
 public:
  using OpenAiForm::OpenAiForm;
  std::string opening(const Choice& c, const Usage&) override {
    Json choice = bare(c.index);
    choice["delta"] = {{"role", "assistant"}, {"content", ""}};
    return chunk(std::move(choice));
  }
  std::string delta(const Choice& c, const std::vector<Part>& parts, const std::vector<Piece>& pieces) override {
    std::string events;
    int64_t calls = 0;
    for (const Part& part : c.parts) calls += part.kind == Part::Kind::call;
    for (size_t i = 0; i < std::max<size_t>(1, parts.size()); ++i) {
      Json choice = bare(c.index);
      if (i < parts.size() && parts[i].kind == Part::Kind::call) {
        choice["delta"]["tool_calls"] = Json::array({call_of(parts[i])});
        choice["delta"]["tool_calls"][0]["index"] = calls++;
      } else if (i < parts.size()) {
        choice["delta"][parts[i].kind == Part::Kind::thought ? "reasoning_content" : "content"] = parts[i].joined();
      }
      if (i == 0) choice["logprobs"] = logprobs(pieces);
      events += chunk(std::move(choice));
    }
    return events;
  }

 private:
  const char* object(bool chunk) const override { return chunk ? "chat.completion.chunk" : "chat.completion"; }
  static Json call_of(const Part& part) {
    return {{"id", part.id}, {"type", "function"}, {"function", {{"name", part.name}, {"arguments", part.text}}}};
  }
  void add_message(Json& choice, const Choice& c) const override {
    std::string text, thought;
    Json calls = Json::array();
    for (const Part& part : c.parts) {
      if (part.kind == Part::Kind::call)
        calls.push_back(call_of(part));
      else
        (part.kind == Part::Kind::thought ? thought : text) += part.joined();
    }
    Json message = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
    if (text.empty() && !calls.empty()) message["content"] = nullptr;
    if (!thought.empty()) message["reasoning_content"] = thought;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    choice["message"] = std::move(message);
  }
  Json bare(int64_t index) const override {
    return {{"index", index}, {"delta", Json::object()}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  }
  Json logprobs(const std::vector<Piece>& pieces) const override {
    if (pieces.empty()) return nullptr;
    Json content = Json::array();
    for (const Piece& piece : pieces) content.push_back(scored_token(*e_.served, piece));
    return {{"content", content}, {"refusal", nullptr}};
  }
};

}  // namespace

std::unique_ptr<AnswerForm> completion_form(Envelope envelope) {
  return std::make_unique<CompletionForm>(std::move(envelope));
}
std::unique_ptr<AnswerForm> chat_form(Envelope envelope) { return std::make_unique<ChatForm>(std::move(envelope)); }

}  // namespace fidelio::serve
