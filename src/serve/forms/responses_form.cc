// This file writes answers in OpenAI's form of responses: https://platform.openai.com/docs/api-reference/responses and
// .../responses-streaming.
#include <ctime>

#include "serve/forms/answer_form.h"

namespace fidelio::serve {
namespace {

Json usage_of_response(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.reused}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.thought}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

// An answer is a list of items: a thought, a message, a call. The last item is open while text arrives for it.
class ResponsesForm final : public AnswerForm {
 public:
  explicit ResponsesForm(Envelope envelope) : e_(std::move(envelope)) {}

  // This is the response with which a stream ends.
  std::string whole(const std::vector<Choice>& choices, const Usage& usage) override {
    const Choice& c = choices[0];
    delta(c, c.parts, c.pieces);
    close_all(c);
    return json_text(response_of(c, usage));
  }
  std::string opening(const Choice&, const Usage&) override {
    const Json response = response_in("in_progress");
    std::string events = event("response.created", {{"response", response}});
    events += event("response.in_progress", {{"response", response}});
    return events;
  }
  std::string delta(const Choice&, const std::vector<Part>& parts, const std::vector<Piece>& pieces) override {
    for (const Piece& piece : pieces)
      if (piece.thought)
        untold_ = Json::array();  // Thinking comes first, so these tokens belonged to its mark.
      else
        untold_.push_back(scored_token(*e_.served, piece));
    std::string events;
    for (const Part& part : parts) events += part.kind == Part::Kind::call ? call(part) : words(part);
    return events;
  }
  std::string finish(const Choice& c, const Usage& usage) override {
    const std::string events = close_all(c);
    const Json response = response_of(c, usage);
    return events + event("response." + response["status"].get<std::string>(), {{"response", response}});
  }
  std::string end(const Usage&) override { return ""; }
  std::string error(const RequestError& error) override {
    Json response = response_in("failed");
    response["error"] = {{"code", "server_error"}, {"message", error.what()}};
    return event("response.failed", {{"response", response}});
  }

 private:
  std::string event(const std::string& type, const Json& fields) {
    Json all = {{"type", type}, {"sequence_number", sequence_++}};
    all.update(fields);
    return "event: " + type + "\ndata: " + json_text(all) + "\n\n";
  }

  Json response_in(const char* status) const {
    Json response = {{"id", e_.id},
                     {"object", "response"},
                     {"created_at", e_.created},
                     {"status", status},
                     {"completed_at", nullptr},
                     {"error", nullptr},
                     {"incomplete_details", nullptr}};
    response["model"] = e_.model;
    response["output"] = output_;
    response["usage"] = nullptr;
    response.update(e_.repeated);
    response["system_fingerprint"] = e_.fingerprint;
    return response;
  }
  Json response_of(const Choice& c, const Usage& usage) const {
    const bool whole = c.finish_reason == "stop";
    Json response = response_in(whole ? "completed" : "incomplete");
    if (whole)
      response["completed_at"] = static_cast<int64_t>(std::time(nullptr));
    else
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response["usage"] = usage_of_response(usage);
    return response;
  }

  bool thinks() const { return kind_ == Part::Kind::thought; }
  Json of_item(const Json& more) const {
    Json fields = {{"item_id", item_["id"]}, {"output_index", output_.size()}};
    fields.update(more);
    return fields;
  }
  Json of_part(const Json& more) const {
    Json fields = of_item({{"content_index", 0}});
    fields.update(more);
    return fields;
  }
  Json part() const {
    if (thinks()) return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}, {"logprobs", logprobs_}};
  }
  std::string begin_item(Json item) {
    item_ = std::move(item);
    return event("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}});
  }
  std::string end_item(const char* status) {
    item_["status"] = status;
    const std::string done = event("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}});
    output_.push_back(std::move(item_));
    return done;
  }

  std::string open(Part::Kind kind) {
    open_ = true;
    kind_ = kind;
    text_.clear();
    logprobs_ = Json::array();
    Json item = {{"id", new_id(thinks() ? "rs_" : "msg_")}, {"type", thinks() ? "reasoning" : "message"}};
    item[thinks() ? "summary" : "role"] = thinks() ? Json::array() : Json("assistant");
    item["status"] = "in_progress";
    item["content"] = Json::array();
    const std::string added = begin_item(std::move(item));
    return added + event("response.content_part.added", of_part({{"part", part()}}));
  }
  std::string words(const Part& more) {
    std::string events;
    const bool goes_on = open_ && kind_ == more.kind;
    if (!goes_on) {
      events += close("completed");
      events += open(more.kind);
    }
    const std::string text = goes_on ? more.joined() : more.text;
    text_ += text;
    if (thinks()) return events + event("response.reasoning_text.delta", of_part({{"delta", text}}));
    events += event("response.output_text.delta", of_part({{"delta", text}, {"logprobs", untold_}}));
    take_untold();
    return events;
  }
  std::string call(const Part& call) {
    std::string events = close("completed");
    events += begin_item({{"id", new_id("fc_")},
                          {"type", "function_call"},
                          {"status", "in_progress"},
                          {"call_id", call.id},
                          {"name", call.name},
                          {"arguments", ""}});
    events += event("response.function_call_arguments.delta", of_item({{"delta", call.text}}));
    events += event("response.function_call_arguments.done", of_item({{"name", call.name}, {"arguments", call.text}}));
    item_["arguments"] = call.text;
    return events + end_item("completed");
  }
  std::string close(const char* status) {
    if (!open_) return "";
    open_ = false;
    if (!thinks()) take_untold();
    Json said = {{"text", text_}};
    if (!thinks()) said["logprobs"] = logprobs_;
    std::string events = event(thinks() ? "response.reasoning_text.done" : "response.output_text.done", of_part(said));
    events += event("response.content_part.done", of_part({{"part", part()}}));
    item_["content"].push_back(part());
    return events + end_item(status);
  }
  // An empty answer is a message without text, as clients expect one.
  std::string close_all(const Choice& c) {
    const std::string opened = output_.empty() && !open_ ? open(Part::Kind::text) : "";
    return opened + close(c.finish_reason == "stop" ? "completed" : "incomplete");
  }
  void take_untold() {
    for (Json& token : untold_) logprobs_.push_back(std::move(token));
    untold_ = Json::array();
  }

  Envelope e_;
  Json output_ = Json::array();
  int64_t sequence_ = 0;
  // These are the open item, its text and the tokens of that text, and tokens whose text is still to come.
  bool open_ = false;
  Part::Kind kind_ = Part::Kind::text;
  Json item_{};
  std::string text_{};
  Json logprobs_ = Json::array(), untold_ = Json::array();
};

}  // namespace

std::unique_ptr<AnswerForm> responses_form(Envelope envelope) {
  return std::make_unique<ResponsesForm>(std::move(envelope));
}

}  // namespace fidelio::serve
