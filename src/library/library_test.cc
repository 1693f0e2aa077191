// These tests call the functions of fidelio.h as a program in C does. tests/python_test.py compares their answers with
// the program's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "library/fidelio.h"

namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kModel = FIDELIO_SOURCE_DIR "/models/quill-1m";

struct Answered {
  fidelio_result result;
  int status;
  std::string text;
};

fidelio_model* opened(std::vector<const char*> words) {
  fidelio_model* model = nullptr;
  EXPECT_EQ(fidelio_open(static_cast<int>(words.size()), words.data(), &model), FIDELIO_OK) << fidelio_message();
  return model;
}

Answered asked(fidelio_model* model, const char* path, const std::string& body) {
  fidelio_answer* answer = nullptr;
  Answered all{fidelio_ask(model, "POST", path, body.data(), body.size(), &answer), 0, ""};
  if (all.result != FIDELIO_OK) return all;
  const char* piece = nullptr;
  size_t bytes = 0;
  while ((all.result = fidelio_next(answer, 50, &piece, &bytes)) != FIDELIO_END && all.result >= 0)
    if (all.result == FIDELIO_OK) all.text.append(piece, bytes);
  all.status = fidelio_status(answer);
  fidelio_drop(answer);
  return all;
}

class Library : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = opened({kModel.c_str(), "--threads", "1"}); }
  static void TearDownTestSuite() { fidelio_free(model_); }
  static std::string text_of(const std::string& prompt) {
    const json body = {{"prompt", prompt}, {"max_tokens", 12}, {"temperature", 0}};
    const Answered answer = asked(model_, "/v1/completions", body.dump());
    EXPECT_EQ(answer.status, 200) << answer.text;
    return json::parse(answer.text)["choices"][0]["text"];
  }
  inline static fidelio_model* model_ = nullptr;
};

TEST_F(Library, RefusesInWords) {
  fidelio_model* model = nullptr;
  const char* absent[] = {"no-such-model"};
  EXPECT_EQ(fidelio_open(1, absent, &model), FIDELIO_REFUSED);
  EXPECT_THAT(fidelio_message(), HasSubstr("no-such-model"));
  EXPECT_EQ(model, nullptr);
  const char* unknown[] = {kModel.c_str(), "--activation=a8"};
  EXPECT_EQ(fidelio_open(2, unknown, &model), FIDELIO_REFUSED);
  EXPECT_THAT(fidelio_message(), HasSubstr("did you mean --activations?"));
  EXPECT_EQ(fidelio_open(0, nullptr, &model), FIDELIO_REFUSED);
  EXPECT_THAT(fidelio_message(), HasSubstr("MODEL"));
}

TEST_F(Library, RefusalsOfTheServerAreAnswers) {
  const Answered answer = asked(model_, "/v1/completions", "{");
  EXPECT_EQ(answer.result, FIDELIO_END);
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.text, HasSubstr("\"error\""));
  EXPECT_EQ(asked(model_, "/v1/nothing", "{}").status, 404);
}

TEST_F(Library, TellsAboutTheModel) {
  const char* text = nullptr;
  ASSERT_EQ(fidelio_about(model_, &text), FIDELIO_OK);
  const json about = json::parse(text);
  EXPECT_EQ(about["name"], "quill-1m");
  EXPECT_TRUE(about["certificate"].is_null());
  EXPECT_GT(about["vocabulary"], 0);
}

TEST_F(Library, ThreadsGetTheAnswersOfOne) {
  const std::vector<std::string> prompts = {"The package", "In the first", "A"};
  std::vector<std::string> alone;
  for (const std::string& prompt : prompts) alone.push_back(text_of(prompt));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      for (size_t turn = 0; turn < 3; ++turn)
        EXPECT_EQ(text_of(prompts[(i + turn) % prompts.size()]), alone[(i + turn) % prompts.size()]);
      const int32_t ids[] = {1, 2, 3};
      float* logits = nullptr;
      int64_t vocabulary = 0;
      EXPECT_EQ(fidelio_logits(model_, ids, 3, &logits, &vocabulary), FIDELIO_OK) << fidelio_message();
      fidelio_release(logits);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Library, LogitsRefuseWhatIsNoSequence) {
  const int32_t beyond[] = {1 << 30};
  float* logits = nullptr;
  int64_t vocabulary = 0;
  EXPECT_EQ(fidelio_logits(model_, beyond, 1, &logits, &vocabulary), FIDELIO_REFUSED);
  EXPECT_THAT(fidelio_message(), HasSubstr("outside the vocabulary"));
  EXPECT_EQ(fidelio_logits(model_, beyond, 0, &logits, &vocabulary), FIDELIO_REFUSED);
  EXPECT_EQ(fidelio_logits(model_, beyond, -1, &logits, &vocabulary), FIDELIO_REFUSED);
  EXPECT_EQ(logits, nullptr);
}

TEST(LibraryEnd, WhoWaitsIsToldOfTheEnd) {
  fidelio_model* model = opened({kModel.c_str(), "--threads", "1"});
  const std::string body =
      json({{"prompt", "A"}, {"max_tokens", 100000}, {"ignore_eos", true}, {"stream", true}, {"n", 64}}).dump();
  fidelio_answer* answer = nullptr;
  ASSERT_EQ(fidelio_ask(model, "POST", "/v1/completions", body.data(), body.size(), &answer), FIDELIO_OK);
  std::thread closes([&] { EXPECT_EQ(fidelio_close(model), FIDELIO_OK); });
  const char* piece = nullptr;
  size_t bytes = 0;
  fidelio_result result = FIDELIO_OK;
  while (result >= 0 && result != FIDELIO_END) result = fidelio_next(answer, 50, &piece, &bytes);
  closes.join();
  EXPECT_EQ(result, FIDELIO_CLOSED);
  EXPECT_EQ(asked(model, "/v1/completions", body).result, FIDELIO_CLOSED);
  fidelio_free(model);
  fidelio_drop(answer);
}

}  // namespace
