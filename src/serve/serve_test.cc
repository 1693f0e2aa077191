// These tests check what a client sees of the server, over loopback and with quill-1m as the model. Every wait is
// bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/generate.h"
#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Serve, AnswersWithTheTextOfGenerate) {
  Serving serving;
  const Reply reply = serving.complete(kGreedy);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto runner = make_runner();
  GenerationRequest request{tokenizer().encode("The package contains"), 24};
  GenerationOptions options;
  options.reading = Activations::a16;
  options.tokenizer = &tokenizer();
  const Generation expected = generate(*runner, {request}, options)[0];
  const Json answer = reply.json();
  EXPECT_EQ(answer["choices"][0]["text"], expected.text);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["system_fingerprint"], "fp_test");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], static_cast<int>(request.prompt.size()));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 24);
  // The same prompt is sent as ids, echoed, and streamed.
  const Json ids = with(kGreedy, {{"prompt", request.prompt}});
  EXPECT_EQ(serving.complete(ids).json()["choices"][0]["text"], expected.text);
  EXPECT_EQ(serving.complete(with(ids, {{"echo", true}})).json()["choices"][0]["text"],
            tokenizer().decode(request.prompt) + expected.text);
  const Reply stream =
      serving.complete(with(kGreedy, {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  EXPECT_THAT(stream.head, HasSubstr("text/event-stream"));
  EXPECT_EQ(streamed_text(stream), expected.text);
  EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(stream.events().back()["usage"]["completion_tokens"], 24);
  EXPECT_TRUE(stream.events().front().at("usage").is_null());
}

TEST(Serve, ChatsInTheCheckpointsTemplate) {
  Serving serving;
  const Json body = {{"messages", {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Hello"}}}}}}},
                     {"temperature", 0},
                     {"max_completion_tokens", 12},
                     {"ignore_eos", true}};
  const Json answer = serving.chat(body).json();
  const Json bare =
      serving
          .complete(with(kGreedy,
                         {{"prompt", "user: Hello\nassistant: "}, {"max_tokens", 12}, {"add_special_tokens", false}}))
          .json();
  EXPECT_EQ(answer["choices"][0]["message"]["content"], bare["choices"][0]["text"]);
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  const Reply stream = serving.chat(with(body, {{"stream", true}}));
  EXPECT_EQ(streamed_text(stream), bare["choices"][0]["text"].get<std::string>());
  EXPECT_EQ(stream.events().front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(stream.events().back()["choices"][0]["finish_reason"], "length");
}

TEST(Serve, SamplesBySeedWhateverElseIsAsked) {
  Serving serving;
  const Json body = with(kGreedy, {{"temperature", 1.0}, {"seed", 7}});
  const Json three = serving.complete(with(body, {{"n", 3}})).json()["choices"];
  ASSERT_EQ(three.size(), 3u);
  EXPECT_EQ(serving.complete(body).json()["choices"][0]["text"], three[0]["text"]);
  EXPECT_NE(three[0]["text"], three[1]["text"]);
  const Json two =
      serving.complete(with(body, {{"prompt", {"The package contains", "Once"}}, {"n", 2}})).json()["choices"];
  ASSERT_EQ(two.size(), 4u);
  EXPECT_EQ(two[1]["text"], three[1]["text"]);
}

TEST(Serve, StopsReportsAndBiases) {
  Serving serving;
  const Json plain = serving.complete(with(kGreedy, {{"logprobs", 0}})).json()["choices"][0];
  const std::string text = plain["text"], middle = text.substr(text.size() / 2, 4);
  const Json stopped = serving.complete(with(kGreedy, {{"stop", {middle}}})).json()["choices"][0];
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(middle)));
  ASSERT_EQ(plain["logprobs"]["token_logprobs"].size(), 24u);
  for (const Json& logprob : plain["logprobs"]["token_logprobs"]) EXPECT_LE(logprob.get<double>(), 0);
  const Json biased = serving.complete(with(kGreedy, {{"logit_bias", {{"65", 100}}}, {"max_tokens", 3}})).json();
  const std::vector<int32_t> ids = {65, 65, 65};
  EXPECT_EQ(biased["choices"][0]["text"], tokenizer().decode(ids));
}

TEST(Serve, NoStopIdComesBeforeSoManyTokens) {
  for (const bool speculates : {false, true}) {
    Serving serving({}, {.speculates = speculates});
    const Json wish = {{"logit_bias", {{"65", 100}}}, {"stop_token_ids", {65}}, {"logprobs", 0}};
    for (const int least : {0, 1, 3, 20}) {
      const Json choice = serving.complete(with(with(kGreedy, wish), {{"min_tokens", least}})).json()["choices"][0];
      EXPECT_EQ(choice["finish_reason"], "stop");
      EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), static_cast<size_t>(least) + 1);
    }
    // The answer is the same as without min_tokens where no stop would come anyway.
    EXPECT_EQ(serving.complete(with(kGreedy, {{"min_tokens", 20}})).json()["choices"],
              serving.complete(kGreedy).json()["choices"]);
  }
}

TEST(Serve, TheSameBytesAloneAndAmong63Others) {
  Serving serving;
  std::vector<Json> bodies;
  for (int i = 0; i < 64; ++i)
    bodies.push_back({{"prompt", "Number " + std::to_string(i * i) + std::string(static_cast<size_t>(i), '.')},
                      {"max_tokens", 4 + i % 13},
                      {"seed", i},
                      {"temperature", i % 2},
                      {"stream", i % 3 == 0}});
  std::vector<std::unique_ptr<Client>> clients;
  for (const Json& body : bodies) {
    clients.push_back(std::make_unique<Client>(serving.port()));
    clients.back()->send(post("/v1/completions", body.dump()));
  }
  const auto text_of = [](const Json& body, const Reply& reply) {
    return body["stream"] ? streamed_text(reply) : reply.json()["choices"][0]["text"].get<std::string>();
  };
  for (size_t i = 0; i < bodies.size(); ++i) {
    const std::string together = text_of(bodies[i], clients[i]->read());
    if (i % 7 != 0) continue;
    EXPECT_EQ(text_of(bodies[i], serving.complete(bodies[i])), together) << i;
  }
}

TEST(Serve, RefusesInOpenAisForm) {
  ServerOptions options;
  options.http.body_bytes = 1 << 16;
  Serving serving(options);
  const auto expect = [&](const std::string& request, int status, const std::string& word) {
    const Reply reply = serving.ask(request);
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), HasSubstr(word));
  };
  const auto refused = [&](const Json& more, const std::string& word) {
    expect(post("/v1/completions", with(kGreedy, more).dump()), 400, word);
  };
  expect(get("/nothing"), 404, "/nothing");
  const Json stranger = serving.complete(with(kGreedy, {{"model", "gpt"}})).json()["error"];
  EXPECT_EQ(stranger["type"], "invalid_request_error");
  EXPECT_EQ(stranger["code"], "model_not_found");
  expect(get("/v1/completions"), 405, "POST");
  expect("NONSENSE\r\n\r\n", 400, "HTTP");
  expect(get("/health", "X: " + std::string(20'000, 'x') + "\r\n"), 431, "header");
  expect(post("/v1/completions", std::string(1 << 17, ' ')), 413, "65536");
  expect(post("/v1/completions", "{\"prompt\": "), 400, "JSON");
  expect(post("/v1/completions", "{\"prompt\": \"\xff\"}"), 400, "JSON");
  expect(post("/v1/completions", std::string(30'000, '[')), 400, "nested");
  expect(post("/v1/completions", "[]"), 400, "object");
  expect(post("/v1/completions", with(kGreedy, {{"model", "gpt"}}).dump()), 404, "gpt");
  refused({{"prompt", Json::array()}}, "prompt");
  refused({{"prompt", {1, 999999}}}, "token ids");
  refused({{"prompt", std::string(5000, 'x')}}, "maximum context length");
  refused({{"temperature", -1}}, "temperature");
  refused({{"temperature", "hot"}}, "temperature");
  refused({{"n", 1000}}, "n:");
  refused({{"stop", {""}}}, "stop");
  refused({{"logit_bias", {{"x", 1}}}}, "logit_bias");
  refused({{"max_tokens", 0}}, "max_tokens");
  refused({{"logprobs", 21}}, "logprobs");
  refused({{"n", 2}, {"best_of", 1}}, "best_of");
  refused({{"best_of", 2}, {"stream", true}}, "best_of");
  refused({{"response_format", {{"type", "xml"}}}}, "response_format");
  refused({{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{"uniqueItems", true}}}}}}}},
          "uniqueItems");
  refused({{"regex", "a(?=b)"}}, "look-ahead");
  for (const auto& [form, word] : {std::pair<Json, std::string>{Json::object(), "one of json"},
                                   {{{"grammar", "root ::= \"a\""}}, "one of json"},
                                   {{{"json", {{"type", "object"}}}, {"regex", "a"}}, "one of json"},
                                   {{{"json", "{"}}, "structured_outputs.json"},
                                   {{{"json", {{"not", Json::object()}}}}, "structured_outputs.json"},
                                   {{{"regex", "("}}, "structured_outputs.regex"},
                                   {{{"regex", 1}}, "structured_outputs.regex"},
                                   {{{"choice", Json::array()}}, "structured_outputs.choice"},
                                   {{{"choice", {"a", ""}}}, "structured_outputs.choice"},
                                   {{{"choice", "a"}}, "structured_outputs.choice"},
                                   {"a", "structured_outputs"}})
    refused({{"structured_outputs", form}}, word);
  refused({{"structured_outputs", {{"regex", "a"}}}, {"regex", "b"}}, "regex");
  for (const char* word : {"guided_grammar", "grammar"}) refused({{word, "a"}}, word);
  refused({{"guided_json", "{"}}, "structured_outputs.json");
  refused({{"guided_regex", "("}}, "structured_outputs.regex");
  refused({{"guided_regex", "a"}, {"guided_choice", {"b"}}}, "guided_choice");
  refused({{"repeat_penalty", 1.1}}, "repetition_penalty");
  refused({{"bad_words", {"a"}}}, "logit_bias");
  refused({{"use_beam_search", true}}, "use_beam_search");
  refused({{"include_stop_str_in_output", true}}, "include_stop_str_in_output");
  refused({{"documents", {{{"text", "a"}}}}}, "chat_template_kwargs.documents");
  for (const char* word : {"no_stop_trim", "stop_regex", "ebnf", "lora_path"}) refused({{word, "a"}}, word);
  const Json neutral = {
      {"repeat_penalty", 1}, {"typical_p", 1.0},         {"mirostat", 0},   {"bad_words", Json::array()},
      {"grammar", ""},       {"use_beam_search", false}, {"n_predict", -1}, {"include_stop_str_in_output", false}};
  EXPECT_EQ(serving.complete(with(kGreedy, neutral)).status, 200);
  refused({{"min_tokens", 100}, {"max_tokens", 99}}, "min_tokens");
  refused({{"min_tokens", 1}, {"regex", "a"}}, "min_tokens");
  refused({{"min_tokens", 1}, {"stop", "a"}}, "min_tokens");
  expect(post("/v1/chat/completions", "{\"messages\": []}"), 400, "messages");
  expect(post("/v1/chat/completions", "{\"messages\": [{\"role\": 3}]}"), 400, "role");
  EXPECT_EQ(serving.ask(get("/health")).status, 200);
}

TEST(Serve, TellsItsNumbersAndItsTokens) {
  Serving serving;
  serving.complete(kGreedy);
  const std::string numbers = serving.ask(get("/metrics")).body;
  EXPECT_THAT(numbers, HasSubstr("vllm:generation_tokens_total{model_name=\"quill\"} 24\n"));
  EXPECT_THAT(numbers, HasSubstr("vllm:request_success_total{model_name=\"quill\",finished_reason=\"length\"} 1\n"));
  EXPECT_THAT(numbers, HasSubstr("vllm:time_to_first_token_seconds_count{model_name=\"quill\"} 1\n"));
  EXPECT_THAT(numbers, HasSubstr("vllm:inter_token_latency_seconds_count{model_name=\"quill\"} 23\n"));
  EXPECT_THAT(numbers, HasSubstr("vllm:num_requests_running{model_name=\"quill\"} 0\n"));
  const Json tokens = serving.ask(post("/tokenize", R"({"prompt": "Caf\u00e9"})")).json();
  EXPECT_EQ(tokens["tokens"].get<std::vector<int32_t>>(), tokenizer().encode("Caf\u00e9"));
  const Json text = serving.ask(post("/detokenize", Json{{"tokens", tokens["tokens"]}}.dump())).json();
  EXPECT_THAT(text["prompt"].get<std::string>(), HasSubstr("Caf\u00e9"));
  EXPECT_EQ(serving.ask(post("/detokenize", R"({"tokens": [-1]})")).status, 400);
}

TEST(Serve, SaysWhatOfAPromptWasInTheCache) {
  Serving serving;
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 200; ++i) prompt.push_back(300 + i);
  const auto cached = [&](int n) {
    const Json usage =
        serving.complete(with(kGreedy, {{"prompt", prompt}, {"max_tokens", 2}, {"n", n}})).json()["usage"];
    EXPECT_EQ(usage["prompt_tokens"], 200);
    return usage["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
  };
  EXPECT_EQ(cached(1), 0);
  const int64_t again = cached(1);
  EXPECT_GE(again, 128);
  EXPECT_LT(again, 200);
  EXPECT_EQ(cached(3), again);  // The prompt is counted once.
}

TEST(Serve, AsksForItsKey) {
  ServerOptions options;
  options.api_key = "secret";
  Serving serving(options);
  EXPECT_EQ(serving.ask(get("/v1/models")).status, 401);
  EXPECT_EQ(serving.ask(get("/v1/models", "Authorization: Bearer secreT\r\n")).status, 401);
  EXPECT_EQ(serving.ask(get("/v1/models", "Authorization: Bearer secret\r\n")).json()["data"][0]["id"], "quill");
  EXPECT_EQ(serving.ask(get("/v1/models/quill", "Authorization: Bearer secret\r\n")).status, 200);
  EXPECT_THAT(serving.ask(get("/v1/models")).head, HasSubstr("WWW-Authenticate: Bearer\r\n"));
  EXPECT_EQ(serving.ask(get("/v1/models", "Authorization: bearer secret\r\n")).status, 200);
  EXPECT_EQ(serving.ask(get("/v1/models", "Authorization: Bearer other\r\nX-Api-Key: secret\r\n")).status, 200);
  EXPECT_EQ(serving.ask(get("/v1/models", "Authorization: Basic secret\r\nX-Api-Key: other\r\n")).status, 401);
}

TEST(Serve, FindsItsModelByANameWithASlash) {
  ServerOptions options;
  options.names = {"owner/model"};
  Serving serving(options);
  for (const char* name : {"owner/model", "owner%2Fmodel", "%6Fwner%2fmodel"})
    EXPECT_EQ(serving.ask(get(std::string("/v1/models/") + name)).status, 200) << name;
  for (const char* name : {"owner%2", "%", "owner%zzmodel", "owner%00/model"})
    EXPECT_EQ(serving.ask(get(std::string("/v1/models/") + name)).status, 404) << name;
}

// Browsers keep a page from reading the answer of another origin, unless the answer allows that page.
TEST(Serve, LetsPagesOfListedOriginsAsk) {
  const std::string page = "Origin: https://chat.example\r\n", other = "Origin: https://evil.example\r\n";
  const auto preflight = [](const std::string& headers) {
    return "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: POST\r\n"
           "Access-Control-Request-Headers: authorization,content-type\r\n" +
           headers + "\r\n";
  };
  ServerOptions options;
  options.api_key = "secret";
  {
    Serving serving(options);
    const Reply refused = serving.ask(get("/health", page));
    EXPECT_EQ(refused.status, 403);
    EXPECT_THAT(refused.head, Not(HasSubstr("Access-Control")));
    EXPECT_EQ(serving.ask(preflight(page)).status, 403);
  }
  options.http.access.origins = {"https://chat.example"};
  {
    Serving serving(options);
    const Reply allowed = serving.ask(preflight(page));
    EXPECT_EQ(allowed.status, 200);
    EXPECT_THAT(allowed.head, HasSubstr("Access-Control-Allow-Origin: https://chat.example\r\nVary: Origin\r\n"));
    EXPECT_THAT(allowed.head, HasSubstr("Access-Control-Allow-Headers: authorization,content-type\r\n"));
    EXPECT_EQ(serving.ask(preflight(other)).status, 403);
    // The answer is 401, and has the header, too.
    EXPECT_THAT(serving.ask(get("/v1/models", page)).head, HasSubstr("Access-Control-Allow-Origin"));
    EXPECT_THAT(serving.ask(get("/health", other)).head, Not(HasSubstr("Access-Control")));
    EXPECT_THAT(serving.ask(get("/health")).head, Not(HasSubstr("Access-Control")));
  }
  options.http.access.origins = {"*"};
  Serving serving(options);
  EXPECT_THAT(serving.ask(get("/health", other)).head, HasSubstr("Access-Control-Allow-Origin: *\r\n"));
}

TEST(Serve, KeepsConnectionsAndTakesRequestsBehindEachOther) {
  Serving serving;
  Client client(serving.port());
  client.send(get("/health"));
  EXPECT_EQ(client.read().status, 200);
  const std::string body = with(kGreedy, {{"max_tokens", 2}}).dump();
  client.send(post("/v1/completions", body) + get("/version") + get("/health", "Connection: close\r\n"));
  EXPECT_THAT(client.read().body, HasSubstr("text_completion"));
  EXPECT_THAT(client.read().body, HasSubstr("version"));
  EXPECT_THAT(client.read().body, HasSubstr("ok"));
  EXPECT_TRUE(client.ended());
}

TEST(Serve, AClientThatGoesEndsItsAnswers) {
  Serving serving;
  const Json endless = with(kGreedy, {{"max_tokens", 480}, {"n", 64}, {"prompt", "a"}});
  for (const bool stream : {true, false}) {
    Client client(serving.port());
    client.send(post("/v1/completions", with(endless, {{"stream", stream}}).dump()));
    const int64_t before = serving.server().status().counters.tokens;
    while (serving.server().status().counters.tokens < before + 64) std::this_thread::yield();
    client.close();
    EXPECT_TRUE(serving.idle());
    EXPECT_LT(serving.server().status().counters.tokens - before, 64 * 480);
  }
}

// A client that has sent everything may close its sending half of the connection, as `nc -N` and socat do.
TEST(Serve, AnswersAClientThatHasSaidAll) {
  Serving serving;
  const std::string last = get("/version");
  for (const bool stream : {true, false}) {
    const Json body = with(kGreedy, {{"max_tokens", 400}, {"n", 16}, {"prompt", "a"}, {"stream", stream}});
    const Reply expected = serving.complete(body);
    Client client(serving.port());
    client.send(post("/v1/completions", body.dump()) + last);
    client.says_no_more();
    Reply reply = client.read();
    while (reply.status == 100) reply = client.read();
    ASSERT_EQ(reply.status, 200);
    for (int64_t i = 0; stream && i < 16; ++i) EXPECT_EQ(streamed_text(reply, i), streamed_text(expected, i));
    if (!stream) {
      EXPECT_EQ(reply.json()["choices"], expected.json()["choices"]);
    }
    EXPECT_THAT(client.read().body, HasSubstr("version"));
    EXPECT_TRUE(client.ended());
  }
}

// The client gets no more than an interim answer, so only its system's reset shows that it has left.
TEST(Serve, AClientThatGoesAfterItHasSaidAllEndsItsAnswer) {
  Serving serving;
  const Json endless = with(kGreedy, {{"max_tokens", 480}, {"n", 64}, {"prompt", {"a", "b"}}});
  for (const std::string version : {"1.1", "1.0"}) {
    std::string request = post("/v1/completions", endless.dump());
    request.replace(request.find("1.1"), 3, version);
    Client client(serving.port());
    client.send(request);
    const int64_t before = serving.server().status().counters.tokens;
    while (serving.server().status().counters.tokens < before + 64) std::this_thread::yield();
    client.says_no_more();
    if (version == "1.1") {
      EXPECT_EQ(client.read().status, 100);
    }
    client.close();
    EXPECT_TRUE(serving.idle());
    EXPECT_LT(serving.server().status().counters.tokens - before, 128 * 480);
  }
}

// The handler of this server leaves its exchange to the test: a stream at /stream, an awaited answer at other paths.
class Awaited {
 public:
  explicit Awaited(std::chrono::milliseconds silence)
      : server_(limits(silence), [this](HttpRequest request, auto exchange) {
          if (request.path == "/stream") exchange->begin_stream(kEvents, "(here)");
          exchanges_.push_back(std::move(exchange));
        }) {
    port_ = server_.listen("127.0.0.1", 0);
    thread_ = std::thread([this] { server_.run(); });
  }
  ~Awaited() {
    server_.stop();
    thread_.join();
  }
  int port() const { return port_; }
  void send(const std::string& bytes) {
    server_.post([this, bytes] { exchanges_[0]->send(bytes); });
  }
  void answer() {
    server_.post([this] { exchanges_.back()->respond({200, "answer"}); });
  }
  void end() {
    server_.post([this] { exchanges_[0]->end(); });
  }

 private:
  static HttpLimits limits(std::chrono::milliseconds silence) {
    HttpLimits limits;
    limits.silence = silence;
    return limits;
  }
  std::vector<std::shared_ptr<Exchange>> exchanges_;
  HttpServer server_;
  int port_ = 0;
  std::thread thread_;
};

TEST(Serve, AStreamThatIsSilentSaysThatItIsThere) {
  Awaited server(std::chrono::milliseconds(1));
  Client stream(server.port()), other(server.port());
  stream.send(get("/stream"));
  stream.read_until("(here)\r\n6\r\n(here)");
  other.send(get("/later"));
  stream.read_until("(here)\r\n6\r\n(here)\r\n6\r\n(here)\r\n6\r\n(here)");
  server.answer();
  EXPECT_TRUE(other.read().head.starts_with("HTTP/1.1 200"));  // These are its first bytes.
  server.send("words");
  server.end();
  EXPECT_THAT(stream.read().body, HasSubstr("(here)words"));
}

TEST(Serve, AStreamThatSpeaksIsNotInterrupted) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds silence{1000}, watch{200};
  Awaited server(silence);
  Client stream(server.port());
  stream.send(get("/stream"));
  stream.read_until("\r\n\r\n");
  Clock::duration longest{};
  for (auto start = Clock::now(), last = start; Clock::now() - start < 2 * silence;) {
    server.send("words ");
    std::this_thread::sleep_for(watch / 4);
    longest = std::max(longest, Clock::now() - std::exchange(last, Clock::now()));
  }
  server.end();
  const std::string body = stream.read().body;
  EXPECT_THAT(body, HasSubstr("words words "));
  if (longest < silence / 2) {  // Otherwise this machine was silent, not the stream.
    EXPECT_THAT(body, Not(HasSubstr("(here)")));
  }
}

TEST(Serve, StopsAfterTheAnswersUnderWay) {
  auto serving = std::make_unique<Serving>();
  Client idle(serving->port()), busy(serving->port());
  idle.send(get("/health"));
  idle.read();
  busy.send(post("/v1/completions", with(kGreedy, {{"max_tokens", 200}, {"prompt", "a"}, {"stream", true}}).dump()));
  busy.read_until("data: ");
  serving->server().http().stop();
  EXPECT_TRUE(idle.ended());
  const Reply reply = busy.read();
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(reply.events().back()["choices"][0]["finish_reason"], "length");
  serving.reset();  // run() has returned.
}

}  // namespace
}  // namespace fidelio::serve
