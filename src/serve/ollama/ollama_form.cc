// This file writes answers in Ollama's form: one JSON object, or one object a line, of which the last says "done" and
// has the counts.
#include <ctime>

#include "core/foreign/json_text.h"
#include "serve/forms/answer_form.h"
#include "serve/ollama/ollama_models.h"

namespace fidelio::serve {
namespace {

int64_t nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

// Arguments are an object here, as the model wrote it. If the model wrote something else, it is given as a text.
Json ollama_call(const Part& part, size_t index) {
  const Json arguments = is_json(part.text) ? json_as_written(part.text) : Json(part.text);
  return {{"id", part.id}, {"function", {{"index", index}, {"name", part.name}, {"arguments", arguments}}}};
}

class OllamaForm final : public AnswerForm {
 public:
  OllamaForm(Envelope envelope, bool chat) : e_(std::move(envelope)), chat_(chat) {}

  std::string whole(const std::vector<Choice>& choices, const Usage& usage) override {
    const Choice& choice = choices[0];
    std::string text, thought;
    Json calls = Json::array();
    for (const Part& part : choice.parts) {
      if (part.kind == Part::Kind::call)
        calls.push_back(ollama_call(part, calls.size()));
      else
        (part.kind == Part::Kind::thought ? thought : text) += part.joined();
    }
    Json answer = line(text, thought, calls, choice.pieces);
    count(answer, choice, usage);
    return json_text(answer);
  }
  std::string type() const override { return "application/x-ndjson"; }
  std::string opening(const Choice&, const Usage&) override { return ""; }
  std::string delta(const Choice&, const std::vector<Part>& parts, const std::vector<Piece>& pieces) override {
    std::string lines;
    if (parts.empty()) lines += json_text(line("", "", Json::array(), pieces)) + "\n";
    for (const Part& part : parts) {
      const bool thought = part.kind == Part::Kind::thought, call = part.kind == Part::Kind::call;
      Json calls = Json::array();
      if (call) calls.push_back(ollama_call(part, calls_++));
      lines += json_text(line(thought || call ? "" : part.joined(), thought ? part.joined() : "", calls,
                              lines.empty() ? pieces : std::vector<Piece>())) +
               "\n";
    }
    return lines;
  }
  std::string finish(const Choice& choice, const Usage& usage) override {
    Json last = line("", "", Json::array(), {});
    count(last, choice, usage);
    return json_text(last) + "\n";
  }
  std::string end(const Usage&) override { return ""; }
  // An empty line is not JSON, and clients would try to parse it.
  std::string ping() const override { return json_text(line("", "", Json::array(), {})) + "\n"; }
  std::string error(const RequestError& error) override { return ollama_error_body(error.what()) + "\n"; }

 private:
  Json line(const std::string& text, const std::string& thought, const Json& calls,
            const std::vector<Piece>& pieces) const {
    Json one = {{"model", e_.model}, {"created_at", ollama_time()}};
    Json said = chat_ ? Json{{"role", "assistant"}, {"content", text}} : Json{{"response", text}};
    if (!thought.empty()) said["thinking"] = thought;
    if (!calls.empty()) said["tool_calls"] = calls;
    if (chat_)
      one["message"] = std::move(said);
    else
      one.update(said);
    one["done"] = false;
    for (const Piece& piece : pieces) one["logprobs"].push_back(scored_token(*e_.served, piece));
    return one;
  }
  // The prompt's time is the time until the first token, and the answer's is the rest.
  static void count(Json& to, const Choice& choice, const Usage& usage) {
    to["done"] = true;
    to["done_reason"] = choice.finish_reason;
    to["total_duration"] = nanoseconds(usage.seconds);
    to["load_duration"] = 0;
    to["prompt_eval_count"] = usage.prompt_tokens;
    to["prompt_eval_duration"] = nanoseconds(usage.first_seconds);
    to["eval_count"] = usage.completion_tokens;
    to["eval_duration"] = nanoseconds(usage.seconds - usage.first_seconds);
  }

  Envelope e_;
  bool chat_;
  size_t calls_ = 0;
};

}  // namespace

std::unique_ptr<AnswerForm> ollama_form(Envelope envelope, bool chat) {
  return std::make_unique<OllamaForm>(std::move(envelope), chat);
}

}  // namespace fidelio::serve
