// This test puts hostile values into logit_bias: values that are not numbers, ids that do not exist, and very many of
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/forms/openai_request.h"
#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

using testing::HasSubstr;

TEST(LogitBias, FloodsAndNumbersThatAreNoneAreRefused) {
  Serving serving;
  const auto answer = [&](const std::string& bias, const std::string& path = "/v1/completions") {
    const std::string asked =
        path == "/v1/completions" ? R"("prompt": "a")" : R"("messages": [{"role": "user", "content": "a"}])";
    return serving.ask(post(path, "{" + asked + R"(, "max_tokens": 1, "logit_bias": )" + bias + "}"));
  };
  const auto many = [](int64_t count) {
    std::string bias = "{";
    for (int64_t i = 0; i < count; ++i) bias += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
    return bias + "}";
  };
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const auto refused = [&](const std::string& bias, const std::string& word) {
      const Reply reply = answer(bias, path);
      EXPECT_EQ(reply.status, 400) << bias.substr(0, 100);
      EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), HasSubstr(word)) << bias.substr(0, 100);
    };
    for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999", "-1e999"})
      refused(std::string("{\"65\": ") + number + "}", "JSON");
    for (const char* number :
         {"100.5", "-101", "1e308", "-1e308", "18446744073709551615", "\"1\"", "null", "true", "[1]"})
      refused(std::string("{\"65\": ") + number + "}", "numbers from -100 to 100");
    for (const char* id : {"", " 1", "1 ", "-1", "+1", "1.0", "1e2", "0x1", "007", "x", "999999", "2147483648",
                           "4294967361", "18446744073709551681", "99999999999999999999999999999999"})
      refused(std::string("{\"") + id + "\": 1}", "token ids from 0 to");
    for (const char* other : {"[]", "[1, 2]", "1", "\"a\"", "true"}) refused(other, "an object of numbers by token id");
    refused(many(kMaxBiases + 1), "at most 1024 tokens");
    refused(many(100'000), "more work than its size warrants");  // The JSON reader refuses it before it is built.
    for (const char* well : {"null", "{}", "{\"65\": 100, \"66\": -100, \"0\": 0}"})
      EXPECT_EQ(answer(well, path).status, 200);
    EXPECT_EQ(answer(many(kMaxBiases), path).status, 200);
  }
  EXPECT_TRUE(serving.idle());
}

}  // namespace
}  // namespace fidelio::serve
