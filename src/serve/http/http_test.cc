// These tests check what a connection answers, by bytes in memory: without a socket, a thread or waiting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/http/http.h"
#include "serve/http/wire.h"

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// This server repeats the body: at /stream letter by letter, at /later never.
class Echo {
 public:
  std::string ask(std::string_view says, size_t piece = SIZE_MAX) {
    MemoryClient client{says, piece};
    server_.converse(client);
    EXPECT_EQ(server_.connections(), 0);
    return client.hears;
  }
  int gone() const { return gone_; }

 private:
  static HttpLimits limits() {
    HttpLimits limits;
    limits.header_bytes = 1024;
    limits.body_bytes = 2048;
    return limits;
  }
  int gone_ = 0;
  HttpServer server_{limits(), [this](HttpRequest request, const std::shared_ptr<Exchange>& exchange) {
                       if (request.path == "/later") return exchange->on_gone([this] { ++gone_; });
                       if (request.path != "/stream") return exchange->respond({200, request.body});
                       exchange->begin_stream(kEvents, kComment);
                       for (const char c : request.body) exchange->send(std::string(1, c));
                       exchange->end();
                     }};
};

std::string post_bytes(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(Http, AnswersPipelinedRequestsWhateverPiecesTheyComeIn) {
  const std::string chunked =
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  const std::string all =
      post_bytes("/", "one") + post_bytes("/stream", "two") + chunked + "GET /last HTTP/1.0\r\n\r\n";
  Echo echo;
  const std::string whole = echo.ask(all);
  EXPECT_THAT(whole, HasSubstr("\r\n\r\none"));
  EXPECT_THAT(whole, HasSubstr("1\r\nt\r\n1\r\nw\r\n1\r\no\r\n0\r\n\r\n"));
  EXPECT_THAT(whole, HasSubstr("HTTP/1.1 100 Continue\r\n\r\n"));
  EXPECT_THAT(whole, HasSubstr("Content-Length: 5\r\n\r\nabcde"));
  EXPECT_THAT(whole, HasSubstr("Connection: close\r\n"));  // HTTP/1.0 has this.
  for (size_t piece = 1; piece < all.size(); piece += piece < 20 ? 1 : 13) EXPECT_EQ(echo.ask(all, piece), whole);
}

TEST(Http, RefusesWhatIsBeyondALimitAndClosesThen) {
  Echo echo;
  const std::string after = post_bytes("/", "unheard");
  for (const size_t piece : {size_t{1}, size_t{100}, SIZE_MAX}) {
    const auto answer = [&](const std::string& says) { return echo.ask(says + after, piece); };
    EXPECT_THAT(answer("GET / HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n"), StartsWith("HTTP/1.1 431"));
    EXPECT_THAT(answer(post_bytes("/", std::string(2049, 'x'))), StartsWith("HTTP/1.1 413"));
    EXPECT_THAT(answer("What is this?\r\n\r\n"), StartsWith("HTTP/1.1 400"));
    EXPECT_EQ(answer("no request\n\n").find("unheard"), std::string::npos);
  }
  EXPECT_THAT(echo.ask(post_bytes("/", std::string(2048, 'x'))), StartsWith("HTTP/1.1 200"));
}

// If the body were taken as absent, its bytes would be a request that a proxy before us has not seen.
TEST(Http, RefusesBodiesCodedInAWayThatItDoesNotRead) {
  Echo echo;
  const auto answer = [&](const std::string& headers) {
    return echo.ask("POST / HTTP/1.1\r\n" + headers + "\r\n2\r\n{}\r\n0\r\n\r\n" + post_bytes("/", "smuggled"));
  };
  const std::string coding = "Transfer-Encoding: ";
  for (const std::string& headers : {coding + "gzip\r\n", coding + "xchunked\r\n", coding + "chunked, chunked\r\n",
                                     coding + "gzip, chunked\r\n", coding + "chunked\r\n" + coding + "gzip\r\n",
                                     coding + "identity\r\n", coding + "chunked\r\nContent-Length: 12\r\n"}) {
    EXPECT_THAT(answer(headers), StartsWith("HTTP/1.1 400")) << headers;
    EXPECT_EQ(answer(headers).find("smuggled"), std::string::npos) << headers;
  }
  EXPECT_THAT(answer(coding + "chunked\r\nContent-Encoding: gzip\r\n"), StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(answer(coding + "Chunked\r\nContent-Encoding: identity\r\n"),
              HasSubstr("smuggled"));  // It is a request of its own.
}

TEST(Http, PassesOverOneEmptyLineBeforeARequest) {
  Echo echo;
  for (const size_t piece : {size_t{1}, SIZE_MAX}) {
    const std::string answers =
        echo.ask(post_bytes("/", "one") + "\r\n" + post_bytes("/", "two") + "\r\n" + post_bytes("/", "three"), piece);
    for (const char* body : {"one", "two", "three"}) EXPECT_THAT(answers, HasSubstr(std::string("\r\n\r\n") + body));
    EXPECT_THAT(echo.ask("\r\n\r\n" + post_bytes("/", "one"), piece), StartsWith("HTTP/1.1 400"));
  }
}

TEST(Http, TakesAnAddressForAPath) {
  Echo echo;
  EXPECT_THAT(echo.ask(post_bytes("http://x:80/stream?a", "ab")), HasSubstr("1\r\na\r\n1\r\nb\r\n"));
  EXPECT_THAT(echo.ask(post_bytes("HTTPS://x", "ab")), HasSubstr("\r\n\r\nab"));
}

TEST(Http, ToldAtMessagesAreInAnthropicsForm) {
  const std::string large(2049, 'x'), messages = R"({"error":{"message":"the body is larger than 2048 bytes",)"
                                                 R"("type":"request_too_large"},"type":"error"})";
  Echo echo;
  EXPECT_THAT(echo.ask(post_bytes("/v1/messages", large)), ::testing::EndsWith(messages));
  EXPECT_THAT(echo.ask(post_bytes("/v1/completions", large)),
              HasSubstr(R"("param":null,"type":"invalid_request_error"}})"));
}

TEST(Http, AClientThatLeavesIsToldOf) {
  Echo echo;
  EXPECT_EQ(echo.ask(post_bytes("/later", "x")), "");
  EXPECT_EQ(echo.gone(), 1);
  EXPECT_EQ(echo.ask(""), "");
  EXPECT_EQ(echo.ask("POST / HTTP/1.1\r\nContent-Len"), "");
  EXPECT_EQ(echo.ask("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhal"), "");
}

}  // namespace
}  // namespace fidelio::serve
