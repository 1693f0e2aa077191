// These tests repeat what an attack on the server found: pages of strangers, connections that send nothing, bodies that
// take long to read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>

#include "serve/http/wire.h"
#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string post_from(const std::string& host, const std::string& headers,
                      const std::string& path = "/v1/completions") {
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  return fmt::format("POST {} HTTP/1.1\r\nHost: {}\r\n{}Content-Length: {}\r\n\r\n{}", path, host, headers, body.size(),
                     body);
}

TEST(Attack, APageWhoseNameIsLedToUsIsRefused) {
  const std::string evil = "rebind.evil.example:18498", origin = "Origin: http://" + evil + "\r\n";
  {
    Serving serving;
    const Reply reply = serving.ask(post_from(evil, origin + "Content-Type: text/plain\r\n"));
    EXPECT_EQ(reply.status, 403);
    EXPECT_EQ(reply.json()["error"]["code"], "host_not_allowed");
    EXPECT_THAT(reply.body, HasSubstr("--allowed-host rebind.evil.example"));
    for (const char* path : {"/", "/v1/models", "/metrics", "/health"})
      EXPECT_EQ(serving.ask(fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", path, evil)).status, 403) << path;
    EXPECT_EQ(serving.ask("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n").status, 400);
    EXPECT_EQ(serving.ask(post_from("localhost", "Content-Type: text/plain\r\n")).status, 415);
    EXPECT_EQ(serving.ask(post_from("localhost", "Origin: http://evil.example\r\n")).json()["error"]["code"],
              "origin_not_allowed");
    const std::string port = std::to_string(serving.port());
    EXPECT_EQ(serving.ask(post_from("localhost:" + port, "Origin: http://localhost:" + port + "\r\n")).status, 200);
    EXPECT_EQ(serving.ask(post_from("127.0.0.1:" + port, "Content-Type: application/json\r\n")).status, 200);
    // The error has the form of the route.
    EXPECT_EQ(serving.ask(post_from(evil, "", "/v1/messages")).json()["type"], "error");
    EXPECT_TRUE(serving.ask(post_from(evil, "", "/api/chat")).json()["error"].is_string());
  }
  ServerOptions options;
  options.http.access.hosts = {"rebind.evil.example"};
  EXPECT_EQ(Serving(options).ask(post_from(evil, origin)).status, 200);
  options = {};
  options.api_key = "secret";
  Serving keyed(options);
  EXPECT_EQ(keyed.ask(post_from(evil, "")).status, 401);
  EXPECT_EQ(keyed.ask(post_from(evil, "X-Api-Key: secret\r\n")).status, 200);
}

TEST(Attack, APageThatMayAskReadsWhatItIsRefused) {
  ServerOptions options;
  options.http.access.origins = {"https://chat.example"};
  options.http.body_bytes = 1 << 10;
  Serving serving(options);
  const std::string origin = "Origin: https://chat.example\r\n";
  for (const auto& [request, status] : {std::pair{post_from("localhost", origin + "Content-Type: text/plain\r\n"), 415},
                                        {post("/v1/completions", std::string(2000, ' '), origin), 413}}) {
    const Reply reply = serving.ask(request);
    EXPECT_EQ(reply.status, status);
    EXPECT_THAT(reply.head, HasSubstr("Access-Control-Allow-Origin: https://chat.example\r\n"));
  }
}

// The handler of this server answers at once, except at /wait, where it keeps the exchanges.
class Few {
 public:
  explicit Few(int64_t connections)
      : server_(
            [&] {
              HttpLimits limits;
              limits.connections = connections;
              return limits;
            }(),
            [this](const HttpRequest& request, std::shared_ptr<Exchange> exchange) {
              if (request.path != "/wait") return exchange->respond({200, request.path});
              kept_.push_back(std::move(exchange));
              ++waiting_;
            }) {
    port_ = server_.listen("127.0.0.1", 0);
    thread_ = std::thread([this] { server_.run(); });
  }
  ~Few() {
    release();
    server_.stop();
    thread_.join();
  }
  void release() {
    server_.post([this] {
      for (const auto& exchange : kept_) exchange->respond({200, "waited"});
      kept_.clear();
    });
  }
  int port() const { return port_; }
  // Waits until so many connections have a request in progress.
  void await(int64_t count) {
    while (waiting_ < count) std::this_thread::yield();
  }

 private:
  std::vector<std::shared_ptr<Exchange>> kept_;
  std::atomic<int64_t> waiting_ = 0;
  HttpServer server_;
  int port_ = 0;
  std::thread thread_;
};

TEST(Attack, ConnectionsThatAskNothingGiveWay) {
  constexpr int64_t kMost = 8;
  Few server(kMost);
  Client first(server.port());
  first.send(get("/first"));
  EXPECT_EQ(first.read().status, 200);
  std::vector<std::unique_ptr<Client>> idle;
  for (int64_t i = 0; i < 3 * kMost; ++i) idle.push_back(std::make_unique<Client>(server.port()));
  for (int i = 0; i < 3; ++i) {
    Client client(server.port());
    client.send(get("/asks"));
    EXPECT_EQ(client.read().body, "/asks");
  }
  EXPECT_TRUE(first.ended());  // This connection was silent for the longest time.
  idle.back()->send(get("/late"));
  EXPECT_EQ(idle.back()->read().body, "/late");
}

TEST(Attack, HealthIsToldWhereAllPlacesAreTaken) {
  constexpr int64_t kMost = 4;
  Few server(kMost);
  std::vector<std::unique_ptr<Client>> busy;
  for (int64_t i = 0; i < kMost; ++i) {
    busy.push_back(std::make_unique<Client>(server.port()));
    busy.back()->send(get("/wait"));
  }
  server.await(kMost);
  for (int i = 0; i < 40; ++i) {  // These are more than the spare places, which are given back.
    Client client(server.port());
    client.send(get("/health"));
    const Reply reply = client.read();
    EXPECT_EQ(reply.body, "/health");
    EXPECT_THAT(reply.head, HasSubstr("Connection: close\r\n"));
  }
  Client other(server.port());
  other.send(get("/other"));
  EXPECT_EQ(other.read().status, 503);
  server.release();
  for (const auto& client : busy) EXPECT_EQ(client->read().body, "waited");
  Client again(server.port());
  again.send(get("/other"));
  EXPECT_EQ(again.read().body, "/other");
}

// Long work does not delay short work, however much short work there is, and it still completes.
TEST(Attack, ShortBodiesDoNotWaitForLongOnes) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> long_ones = 0, short_ones = 0;
  std::vector<size_t> order;
  {
    Reader reader;
    std::promise<void> begun;
    reader.add(1 << 22, [&] {
      begun.set_value();
      released.wait();
    });
    begun.get_future().wait();
    for (const size_t bytes : {5, 3, 4})
      reader.add(bytes << 20, [&, bytes] {
        order.push_back(bytes);
        ++long_ones;
      });
    for (int i = 0; i < 100; ++i) reader.add(static_cast<size_t>(i), [&] { ++short_ones; });
    while (short_ones < 100) std::this_thread::yield();
    EXPECT_EQ(long_ones, 0);
    release.set_value();
    while (long_ones < 3) std::this_thread::yield();
  }
  EXPECT_EQ(order, (std::vector<size_t>{3, 4, 5}));
}

// Bodies of blanks (six of 4 MiB took ten seconds) were read one after the other before a short request was.
TEST(Attack, AShortRequestDoesNotWaitForLongOnesOfBlanks) {
  Serving serving;
  const std::string blanks = post("/tokenize", R"({"prompt":")" + std::string(300'000, ' ') + "\"}");
  std::vector<std::unique_ptr<Client>> flood;
  for (int i = 0; i < 6; ++i) {
    flood.push_back(std::make_unique<Client>(serving.port()));
    flood.back()->send(blanks);
  }
  flood.front()->more();  // The server has the other bodies by now.
  EXPECT_EQ(serving.complete({{"prompt", "hi"}, {"max_tokens", 1}}).status, 200);
  EXPECT_LT(std::count_if(flood.begin() + 1, flood.end(), [](const auto& client) { return client->answered(); }), 5);
  for (const auto& client : flood) EXPECT_EQ(client->read().status, 200);
}

TEST(Attack, APromptFarBeyondTheContextIsRefused) {
  Serving serving;
  const std::string blanks(4'000'000, ' '), expected = "maximum context length";
  const Reply bare = serving.ask(post("/v1/completions", R"({"prompt":")" + blanks + "\"}"));
  EXPECT_EQ(bare.status, 400);
  EXPECT_EQ(bare.json()["error"]["code"], "context_length_exceeded");
  const Reply chat =
      serving.ask(post("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + blanks + "\"}]}"));
  EXPECT_THAT(chat.body, HasSubstr(expected));
}

// If a client leaves while its request is read, the answer is not computed.
TEST(Attack, WhoLeavesBeforeItsRequestIsReadIsToldToWhoeverWaits) {
  MemoryClient client{"GET / HTTP/1.1\r\n\r\n"};
  std::shared_ptr<Exchange> kept;
  HttpServer server({}, [&](const HttpRequest&, std::shared_ptr<Exchange> exchange) { kept = std::move(exchange); });
  server.converse(client);
  ASSERT_NE(kept, nullptr);
  bool told = false;
  kept->on_gone([&] { told = true; });
  EXPECT_TRUE(told);
}

TEST(Attack, TheSocketIsItsOwnersAlone) {
  const std::string path = ::testing::TempDir() + "fidelio_socket_" + std::to_string(::getpid());
  for (const mode_t mask : {mode_t{0}, mode_t{022}, mode_t{0777}})
    for (const mode_t mode : {mode_t{0600}, mode_t{0660}}) {
      const mode_t before = ::umask(mask);
      {
        HttpServer server({}, [](const HttpRequest&, const std::shared_ptr<Exchange>& e) { e->respond({200, ""}); });
        server.listen_unix(path, mode);
        struct stat status {};
        ASSERT_EQ(::lstat(path.c_str(), &status), 0);
        EXPECT_EQ(status.st_mode & 0777, mode) << mask;
      }
      ::umask(before);
      EXPECT_FALSE(std::filesystem::exists(path));
    }
}

// tools/check_page.py checks what a browser makes of hostile answers. This test checks that the page has no way to turn
// them into HTML.
TEST(Attack, ThePageHasNoWayToMakeAnAnswerHtml) {
  Serving serving;
  const Reply page = serving.ask(get("/"));
  ASSERT_THAT(page.body, HasSubstr("const markdown = "));
  for (const char* way : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(",
                          "DOMParser", "createContextualFragment", "srcdoc", "setHTML", "setAttribute('on"})
    EXPECT_THAT(page.body, Not(HasSubstr(way)));
  EXPECT_THAT(page.head, HasSubstr("script-src 'sha256-"));
  EXPECT_THAT(page.head, HasSubstr("require-trusted-types-for 'script'"));
}

}  // namespace
}  // namespace fidelio::serve
