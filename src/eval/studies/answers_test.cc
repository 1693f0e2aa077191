#include "eval/studies/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/generate.h"
#include "eval/statistics/proportions.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

FakeRunner answering(double noise, int64_t rows = 64, int vocabulary = 23) {
  RunnerOptions options;
  options.max_rows = rows;
  options.max_logit_rows = 16;
  options.cache_tokens = 1024;
  return FakeRunner({.vocabulary = vocabulary, .context = 64, .noise = noise}, options);
}

const std::vector<std::vector<int32_t>> kAnswered = {{1, 2, 3}, {4}, {5, 6}, {7, 8, 9, 10}, {11, 12}, {13, 14, 15}};

TEST(Answers, OfAModelItselfAreTheSame) {
  FakeRunner a = answering(0), b = answering(0);
  const WholeAnswers answers = measure_answers(a, b, kAnswered, {.max_tokens = 20, .stop_ids = {}});
  EXPECT_EQ(answers.same, 6);
  EXPECT_EQ(answers.tokens, 120);
  EXPECT_EQ(answers.alike, 120);
  EXPECT_THAT(answers.differs_at, testing::Each(-1));
  EXPECT_EQ(answers.share().value, 1);
  EXPECT_EQ(answers.share().ci95.low, clopper_pearson(6, 6).ci95.low);
  EXPECT_LT(answers.share().ci95.low, 0.6);  // six of six are no certainty
}

TEST(Answers, DifferWhereTheCandidatesOwnAnswerDoes) {
  FakeRunner a = answering(0), b = answering(0.1), again = answering(0.1, 7);
  const WholeAnswers answers = measure_answers(a, b, kAnswered, {.max_tokens = 20, .stop_ids = {}});
  std::vector<GenerationRequest> requests;
  for (const auto& p : kAnswered) requests.push_back({.prompt = p, .max_tokens = 20});
  const auto its = generate(a, requests, {.reading = Activations::f32}), other = generate(b, requests);
  int64_t same = 0;
  for (size_t i = 0; i < kAnswered.size(); ++i) {
    const auto [x, y] = std::mismatch(its[i].ids.begin(), its[i].ids.end(), other[i].ids.begin());
    same += x == its[i].ids.end();
    EXPECT_EQ(answers.differs_at[i], x == its[i].ids.end() ? -1 : x - its[i].ids.begin()) << i;
  }
  EXPECT_EQ(answers.same, same);
  EXPECT_GT(same, 0);
  EXPECT_LT(same, 6);
  EXPECT_LT(answers.alike, answers.tokens);
  EXPECT_EQ(to_json(answers), to_json(measure_answers(a, again, kAnswered, {.max_tokens = 20, .stop_ids = {}})));
}

TEST(Answers, EndAtAStopToken) {
  FakeRunner a = answering(0), b = answering(0);
  const auto whole = generate(a, {{.prompt = kAnswered[0], .max_tokens = 20}}, {.reading = Activations::f32});
  const WholeAnswers answers =
      measure_answers(a, b, std::span(kAnswered).first(1), {.max_tokens = 20, .stop_ids = {whole[0].ids[0]}});
  EXPECT_EQ(answers.tokens, 1);  // the stop token is a token of the answer
  EXPECT_EQ(answers.same, 1);
}

TEST(Answers, ComeBackFromTheirJson) {
  FakeRunner a = answering(0), b = answering(0.1);
  const nlohmann::json json = to_json(measure_answers(a, b, kAnswered, {.max_tokens = 20, .stop_ids = {}}));
  EXPECT_EQ(to_json(answers_from_json(json)), json);
  EXPECT_THROW(answers_from_json({{"prompts", 3}}), nlohmann::json::exception);
}

TEST(Answers, NeedPromptsThatLeaveRoom) {
  FakeRunner a = answering(0), b = answering(0), other = answering(0, 64, 24);
  EXPECT_THROW(measure_answers(a, b, {}, {}), Error);
  EXPECT_THROW(measure_answers(a, other, kAnswered, {}), Error);
  EXPECT_THROW(measure_answers(a, b, std::vector<std::vector<int32_t>>{std::vector<int32_t>(64, 1)}, {}), Error);
}

}  // namespace
}  // namespace fidelio
