// This file writes answers in Anthropic's form: https://docs.anthropic.com/en/api/messages and .../messages-streaming.
#include "core/foreign/json_text.h"
#include "serve/forms/answer_form.h"
#include "serve/forms/messages.h"

namespace fidelio::serve {
namespace {

std::string message_event(const Json& value) {
  return "event: " + value["type"].get<std::string>() + "\ndata: " + json_text(value) + "\n\n";
}

// Clients accept only an object, whatever the model wrote.
std::string arguments_of(const Part& call) {
  return call.text.starts_with('{') && is_json(call.text) ? call.text : "{}";
}

Json block_of(const Part& part) {
  if (part.kind == Part::Kind::thought) return {{"type", "thinking"}, {"thinking", part.text}, {"signature", ""}};
  if (part.kind == Part::Kind::text) return {{"type", "text"}, {"text", part.text}};
  return {{"type", "tool_use"}, {"id", part.id}, {"name", part.name}, {"input", json_as_written(arguments_of(part))}};
}

Json stop_reason(const Choice& c) {
  if (c.called() && c.finish_reason == "stop") return "tool_use";
  if (!c.stop.empty()) return "stop_sequence";
  return c.finish_reason == "stop" ? "end_turn" : "max_tokens";
}
Json null_or_text(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

class MessagesForm final : public AnswerForm {
 public:
  explicit MessagesForm(Envelope envelope) : e_(std::move(envelope)) {}

  std::string whole(const std::vector<Choice>& choices, const Usage& usage) override {
    const Choice& c = choices[0];
    Json message = head(usage);
    for (const Part& part : c.parts) message["content"].push_back(block_of(part));
    message["stop_reason"] = stop_reason(c);
    message["stop_sequence"] = null_or_text(c.stop);
    return json_text(message);
  }
  std::string opening(const Choice&, const Usage& usage) override {
    return message_event({{"type", "message_start"}, {"message", head(usage)}});
  }
  // A part of another kind than the one before closes the open block and opens a new one.
  std::string delta(const Choice&, const std::vector<Part>& parts, const std::vector<Piece>&) override {
    std::string events;
    for (const Part& part : parts) {
      const bool call = part.kind == Part::Kind::call, goes_on = open_ && part.kind == kind_ && !call;
      const std::string text = goes_on ? part.joined() : part.text;
      if (!goes_on) {
        events += close();
        Json block = block_of(part);
        if (call) block["input"] = Json::object();
        if (!call) block[part.kind == Part::Kind::thought ? "thinking" : "text"] = "";
        events += message_event({{"type", "content_block_start"}, {"index", index_}, {"content_block", block}});
        open_ = true;
        kind_ = part.kind;
      }
      Json more;
      if (call)
        more = {{"type", "input_json_delta"}, {"partial_json", arguments_of(part)}};
      else if (part.kind == Part::Kind::thought)
        more = {{"type", "thinking_delta"}, {"thinking", text}};
      else
        more = {{"type", "text_delta"}, {"text", text}};
      events += message_event({{"type", "content_block_delta"}, {"index", index_}, {"delta", more}});
    }
    return events;
  }
  std::string finish(const Choice& c, const Usage& usage) override {
    return close() +
           message_event({{"type", "message_delta"},
                          {"delta", {{"stop_reason", stop_reason(c)}, {"stop_sequence", null_or_text(c.stop)}}},
                          {"usage", usage_of(usage)}});
  }
  std::string end(const Usage&) override { return message_event({{"type", "message_stop"}}); }
  std::string ping() const override { return message_event({{"type", "ping"}}); }
  std::string error(const RequestError& error) override {
    return "event: error\ndata: " + messages_error_body(error.status(), error.what()) + "\n\n";
  }

 private:
  static Json usage_of(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens}, {"output_tokens", usage.completion_tokens}};
  }
  Json head(const Usage& usage) const {
    return {{"id", e_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", e_.model},
            {"content", Json::array()},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr},
            {"usage", usage_of(usage)},
            {"system_fingerprint", e_.fingerprint}};
  }
  std::string close() {
    if (!open_) return "";
    open_ = false;
    return message_event({{"type", "content_block_stop"}, {"index", index_++}});
  }

  Envelope e_;
  bool open_ = false;
  Part::Kind kind_ = Part::Kind::text;
  int64_t index_ = 0;
};

}  // namespace

std::unique_ptr<AnswerForm> messages_form(Envelope envelope) {
  return std::make_unique<MessagesForm>(std::move(envelope));
}

}  // namespace fidelio::serve
