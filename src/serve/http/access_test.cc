// These tests check who may send requests: names and pages of strangers, and bodies that do not say that they are JSON.
#include "serve/http/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fidelio::serve {
namespace {

using ::testing::HasSubstr;

TEST(Access, TakesNamesThatNoStrangerCanOwn) {
  Access access;
  const auto own = [&](Reach reach, std::string_view host) { return is_own_name(access, reach, host); };
  for (const char* host : {"localhost", "LocalHost:8000", "localhost.", "app.localhost:1", "127.0.0.1:8000",
                           "127.9.9.9", "[::1]:8000", "[::1]", ""})
    for (const Reach reach : {Reach::here, Reach::machine, Reach::network}) EXPECT_TRUE(own(reach, host)) << host;
  // Addresses and private names of a network are no names of a server that only its own machine can reach.
  for (const char* host : {"192.168.1.7:8000", "[fe80::1]:8000", "0.0.0.0", "fidelio:8000", "box.local", "a.b.internal",
                           "nas.home.arpa:80"}) {
    EXPECT_TRUE(own(Reach::network, host)) << host;
    EXPECT_FALSE(own(Reach::machine, host)) << host;
  }
  for (const char* host :
       {"rebind.evil.example:8000", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
        "evil.example#localhost", "notlocal.example", "xlocalhost.com", "[evil.example]"}) {
    EXPECT_FALSE(own(Reach::network, host)) << host;
    EXPECT_FALSE(own(Reach::machine, host)) << host;
    EXPECT_TRUE(own(Reach::here, host)) << host;
  }
  access.hosts = {"chat.example"};
  EXPECT_TRUE(own(Reach::machine, "Chat.Example:443"));
  EXPECT_FALSE(own(Reach::machine, "evil.chat.example"));
  access.hosts = {"*"};
  EXPECT_TRUE(own(Reach::machine, "evil.example"));
}

TEST(Access, RefusesWhatAForeignPageSends) {
  Access access;
  const auto status = [&](Asked asked) {
    if (asked.method.empty()) asked.method = "POST";
    if (asked.path.empty()) asked.path = "/v1/completions";
    if (asked.host.empty()) asked.host = "localhost:8000";
    return refusal_of(access, Reach::machine, asked).status;
  };
  EXPECT_EQ(status({}), 0);
  EXPECT_EQ(status({.origin = "http://localhost:8000"}), 0);
  EXPECT_EQ(status({.origin = "https://localhost:8000"}), 0);  // A proxy speaks TLS here.
  for (const char* origin : {"https://evil.example", "http://localhost:3000", "http://localhost", "null", "x",
                             "file://", "http://localhost:8000.evil.example", "http://evil.example/localhost:8000"}) {
    EXPECT_EQ(status({.origin = origin}), 403) << origin;
    EXPECT_EQ(status({.method = "GET", .origin = origin}), 403) << origin;
    EXPECT_EQ(status({.origin = origin, .site = "cross-site"}), 403) << origin;
  }
  EXPECT_EQ(status({.origin = "https://chat.example", .site = "same-origin"}), 0);  // A proxy changed Host here.
  access.origins = {"https://evil.example"};
  EXPECT_EQ(status({.origin = "https://evil.example"}), 0);
  EXPECT_EQ(status({.origin = "https://other.example"}), 403);
  access.origins = {"*"};
  EXPECT_EQ(status({.origin = "null"}), 0);
  // The name of the server does not matter where it has a key.
  EXPECT_EQ(status({.host = "evil.example"}), 403);
  access.names = false;
  EXPECT_EQ(status({.host = "evil.example"}), 0);
}

TEST(Access, WantsABodyThatCallsItselfJson) {
  const auto refused = [](std::string_view type, std::string_view path = "/v1/completions") {
    return refusal_of({}, Reach::machine, {.method = "POST", .path = path, .type = type});
  };
  for (const char* type : {"", "application/json", "Application/JSON ; charset=utf-8", "application/problem+json"})
    EXPECT_EQ(refused(type).status, 0) << type;
  const std::string form = "application/x-www-form-urlencoded";
  for (const std::string& type : {std::string("text/plain"), std::string("text/plain;application/json"), form,
                                  std::string("multipart/form-data; boundary=x"), std::string("application/jsonp")})
    EXPECT_EQ(refused(type).status, 415) << type;
  EXPECT_THAT(refused(form).message, HasSubstr("--json"));
  EXPECT_EQ(refused(form, "/api/chat").status, 0);  // Ollama's pages show it so.
  EXPECT_EQ(refused("text/plain", "/api/chat").status, 415);
  EXPECT_EQ(refusal_of({}, Reach::machine, {.method = "GET", .type = "text/plain"}).status, 0);
}

}  // namespace
}  // namespace fidelio::serve
