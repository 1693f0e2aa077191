// These tests follow a call from its requests to its last byte, with an event loop of the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/json_schema.h"
#include "serve/forms/answering.h"
#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

class Answered final : public Exchange {
 public:
  void respond(HttpResponse response) override { reply.body = response.body, over = true; }
  void begin_stream(const std::string&, std::string text) override { ping = std::move(text); }
  void send(std::string bytes) override { reply.body += bytes; }
  void end() override { over = true; }
  void on_gone(std::function<void()>) override {}
  Reply reply;
  std::string ping;
  bool over = false;
};

// The waiting thread does the work of the loop.
class OneLoop {
 public:
  OneLoop()
      : engine_([this](std::function<void()> work) { post(std::move(work)); }, [] { return load(); }, 8,
                [this](std::shared_ptr<const ServedModel> model, const std::string&) { model_ = model; }) {
    turn([this] { return model_ != nullptr; });
  }
  const std::shared_ptr<const ServedModel>& model() const { return model_; }
  int64_t tokens() const { return engine_.status().counters.tokens; }
  Reply answer(const Call& call) { return answered(call)->reply; }
  std::shared_ptr<Answered> answered(const Call& call) {
    const auto exchange = std::make_shared<Answered>();
    std::make_shared<Answering>(call, model_, engine_, metrics_, exchange)->start();
    turn([&] { return exchange->over; });
    return exchange;
  }

 private:
  void post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    wake_.notify_one();
  }
  void turn(const std::function<bool()>& done) {
    while (!done()) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        check(wake_.wait_for(lock, std::chrono::milliseconds(kWaitMs), [&] { return !work_.empty(); }), "no answer");
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  std::shared_ptr<const ServedModel> model_;
  Metrics metrics_;
  EngineThread engine_;
};

// The model is forced to write twenty calls, and the client asks for one.
TEST(Answering, EndsAnAnswerAfterTheOneCallThatWasAskedFor) {
  OneLoop loop;
  const char* const calls = R"((<tool_call>\{"name": "f", "arguments": \{\}\}</tool_call>\n){20})";
  Call call = read_call(Route::chat, R"({"messages": [{"role": "user", "content": "u"}], "temperature": 0, "n": 2,
    "tools": [{"type": "function", "function": {"name": "f"}}], "logprobs": true})",
                        *loop.model(), {"quill"});
  call.prompts[0].constraint = loop.model()->formats->get("calls", [&] { return grammar::regex_grammar(calls); });
  call.prompts[0].max_tokens = 400;
  const Json all = loop.answer(call).json();
  ASSERT_GE(all["choices"][0]["message"]["tool_calls"].size(), 2u) << all;
  const int64_t before = loop.tokens();
  call.one_call = true;
  const Json one = loop.answer(call).json();
  int64_t tokens = 0;
  for (const Json& choice : one["choices"]) {
    EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    tokens += static_cast<int64_t>(choice["logprobs"]["content"].size());
  }
  EXPECT_EQ(one["usage"]["completion_tokens"], tokens);
  EXPECT_EQ(one["usage"]["prompt_tokens"], all["usage"]["prompt_tokens"]);
  EXPECT_LT(loop.tokens() - before, all["usage"]["completion_tokens"].get<int64_t>());
  call.stream = true;
  int64_t heard = 0;
  for (const Json& event : loop.answer(call).events())
    for (const Json& choice : event["choices"]) heard += choice["delta"].contains("tool_calls");
  EXPECT_EQ(heard, 2);  // Each choice has one.
}

TEST(Answering, CountsWhatWasThought) {
  OneLoop loop;
  Call call =
      read_call(Route::responses, R"({"input": "u", "temperature": 0, "top_logprobs": 1})", *loop.model(), {"quill"});
  call.prompts[0].constraint =
      loop.model()->formats->get("thought", [&] { return grammar::regex_grammar("<think>[a-z]{9}</think>[A-Z]{9}"); });
  const Json whole = loop.answer(call).json();
  ASSERT_EQ(whole["output"].size(), 2u) << whole;
  EXPECT_EQ(whole["output"][0]["content"][0]["text"].get<std::string>().size(), 9u);
  const Json& said = whole["output"][1]["content"][0];
  const int64_t thought = whole["usage"]["output_tokens_details"]["reasoning_tokens"],
                tokens = whole["usage"]["output_tokens"];
  std::string spelled;
  for (const Json& token : said["logprobs"]) spelled += token["token"].get<std::string>();
  // One token may hold the end of the mark and the first letter of the answer. It belongs to the thought.
  const std::string text = said["text"];
  EXPECT_THAT(spelled, ::testing::AnyOf(text, text.substr(1)));
  EXPECT_EQ(std::ssize(said["logprobs"]), tokens - thought);
  call.stream = true;
  const std::vector<Json> events = loop.answer(call).events();
  EXPECT_EQ(events.back()["response"]["usage"]["output_tokens_details"]["reasoning_tokens"], thought);
  EXPECT_EQ(events.back()["response"]["output"][1]["content"], whole["output"][1]["content"]);
}

TEST(Answering, BreaksItsSilenceInTheClientsForm) {
  OneLoop loop;
  const auto ping = [&](Route route, const char* body) {
    return loop.answered(read_call(route, body, *loop.model(), {"quill"}))->ping;
  };
  EXPECT_EQ(ping(Route::chat, R"({"messages": [{"role": "user", "content": "u"}], "max_tokens": 1, "stream": true})"),
            ":\n\n");
  EXPECT_EQ(ping(Route::responses, R"({"input": "u", "max_output_tokens": 1, "stream": true})"), ":\n\n");
  EXPECT_EQ(
      ping(Route::messages, R"({"messages": [{"role": "user", "content": "u"}], "max_tokens": 1, "stream": true})"),
      "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

}  // namespace
}  // namespace fidelio::serve
