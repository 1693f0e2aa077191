// The server over loopback, with quill-1m behind it: what a client sees. Every wait is bounded.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "engine/generate.h"
#include "io/checkpoint.h"
#include "serve/server.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;

constexpr int kWaitMs = 60'000;
const char* const kTemplate =
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

struct Reply {
  int status = 0;
  std::string head, body;
  Json json() const { return Json::parse(body); }
  std::vector<Json> events() const {  // of a stream, without [DONE]
    std::vector<Json> all;
    for (size_t at = body.find("data: "); at != std::string::npos; at = body.find("data: ", at + 1)) {
      const std::string line = body.substr(at + 6, body.find('\n', at) - at - 6);
      if (line != "[DONE]") all.push_back(Json::parse(line));
    }
    return all;
  }
};

class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "cannot connect");
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      check(n > 0, "cannot send");
      at += static_cast<size_t>(n);
    }
  }
  // False at the end of the connection.
  bool more() {
    pollfd descriptor{fd_, POLLIN, 0};
    check(::poll(&descriptor, 1, kWaitMs) == 1, "no answer within a minute; so far: {}", got_);
    char bytes[4096];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n > 0) got_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }
  void read_until(const std::string& mark) {
    while (got_.find(mark) == std::string::npos) check(more(), "the connection ended before {}", mark);
  }
  Reply read() {
    read_until("\r\n\r\n");
    Reply reply;
    const size_t end = got_.find("\r\n\r\n");
    reply.head = got_.substr(0, end + 2);
    got_.erase(0, end + 4);
    reply.status = std::stoi(reply.head.substr(9, 3));
    const size_t length = reply.head.find("Content-Length: ");
    if (length != std::string::npos) {
      const auto bytes = static_cast<size_t>(std::stoll(reply.head.substr(length + 16)));
      while (got_.size() < bytes) check(more(), "the body ended early");
      reply.body = got_.substr(0, bytes);
      got_.erase(0, bytes);
    } else {
      for (size_t size = 1; size > 0;) {
        read_until("\r\n");
        size = std::stoul(got_, nullptr, 16);
        got_.erase(0, got_.find("\r\n") + 2);
        while (got_.size() < size + 2) check(more(), "a chunk ended early");
        reply.body += got_.substr(0, size);
        got_.erase(0, size + 2);
      }
    }
    return reply;
  }
  bool ended() {  // what comes is nothing more
    while (more()) {
    }
    return got_.empty();
  }

 private:
  int fd_;
  std::string got_;
};

std::string get(const std::string& path, const std::string& header = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + header + "\r\n";
}
std::string post(const std::string& path, const std::string& body, const std::string& header = "") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{}", path, header, body.size(), body);
}

const Checkpoint& quill() {
  static const Checkpoint checkpoint = Checkpoint::open(FIDELIO_SOURCE_DIR "/models/quill-1m");
  return checkpoint;
}
const Tokenizer& tokenizer() {
  static const Tokenizer t = Tokenizer::load(quill().texts());
  return t;
}

std::unique_ptr<Runner> make_runner() {
  RunnerOptions options;
  options.threads = 1;
  options.cache_tokens = 8192;
  return make_cpu_runner(quill(), options);
}

Loaded load() {
  auto model = std::make_shared<ServedModel>(ServedModel{"quill", tokenizer(), ChatTemplate(kTemplate), {2}, {}});
  Loaded loaded;
  loaded.runner = make_runner();
  model->vocabulary = loaded.runner->config().v;
  model->context = loaded.runner->config().max_positions;
  model->fingerprint = "fp_test";
  EngineOptions options;
  options.reading = Activations::a16;
  options.tokenizer = &model->tokenizer;
  loaded.engine = std::make_unique<Engine>(*loaded.runner, std::move(options));
  loaded.model = std::move(model);
  return loaded;
}

// A server in a thread, stopped and joined at the end.
class Serving {
 public:
  explicit Serving(ServerOptions options = {}) : server_(std::move(options), load) {
    port_ = server_.http().listen("127.0.0.1", 0);
    thread_ = std::thread([this] { server_.run(); });
    for (int i = 0; i < 600 && ask(get("/health")).status != 200; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ~Serving() {
    server_.http().stop();
    thread_.join();
  }
  int port() const { return port_; }
  Server& server() { return server_; }
  Reply ask(const std::string& request) {
    Client client(port_);
    client.send(request);
    return client.read();
  }
  Reply complete(const Json& body) { return ask(post("/v1/completions", body.dump())); }
  Reply chat(const Json& body) { return ask(post("/v1/chat/completions", body.dump())); }
  // Waits until the engine has nothing to do.
  bool idle() {
    for (int i = 0; i < kWaitMs / 10; ++i) {
      const EngineStatus s = server_.status();
      if (s.running + s.waiting == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  Server server_;
  int port_ = 0;
  std::thread thread_;
};

std::string streamed_text(const Reply& reply, int64_t index = 0) {
  std::string text;
  for (const Json& event : reply.events())
    for (const Json& choice : event["choices"])
      if (choice["index"] == index)
        text += choice.contains("text") ? choice["text"].get<std::string>() : choice["delta"].value("content", "");
  return text;
}

const Json kGreedy = {{"prompt", "The package contains"}, {"max_tokens", 24}, {"temperature", 0}, {"ignore_eos", true}};
Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}

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
  // The same prompt as ids, echoed, and streamed.
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
  refused({{"logprobs", 1}}, "logprobs");
  refused({{"logprobs", 0}, {"echo", true}}, "echo");
  refused({{"best_of", 2}}, "best_of");
  refused({{"response_format", {{"type", "json_object"}}}}, "response_format");
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

TEST(Serve, AsksForItsKey) {
  ServerOptions options;
  options.api_key = "secret";
  Serving serving(options);
  EXPECT_EQ(serving.ask(get("/v1/models")).status, 401);
  EXPECT_EQ(serving.ask(get("/v1/models", "Authorization: Bearer secreT\r\n")).status, 401);
  EXPECT_EQ(serving.ask(get("/v1/models", "Authorization: Bearer secret\r\n")).json()["data"][0]["id"], "quill");
  EXPECT_EQ(serving.ask(get("/v1/models/quill", "Authorization: Bearer secret\r\n")).status, 200);
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
  serving.reset();  // run() has returned
}

}  // namespace
}  // namespace fidelio::serve
