#include "eval/fidelity/echo.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "eval/tasks/tasks.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

const Tokenizer& echo_tokenizer() {
  static const Tokenizer t = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-26m");
  return t;
}

FakeRunner echo_runner(double spread = 4) {
  RunnerOptions options;
  options.max_rows = 16;
  options.max_logit_rows = 5;
  options.cache_tokens = 256;
  return FakeRunner({.vocabulary = echo_tokenizer().vocab_size(), .context = 64, .spread = spread}, options);
}

TEST(Echo, EveryTokenAndTheNextOne) {
  FakeRunner runner = echo_runner();
  const std::vector<std::vector<int32_t>> prompts = {{5, 6, 7, 8}, {9}, std::vector<int32_t>(20, 3)};
  const auto echoes = echo(runner, prompts, 3, Activations::f32);
  ASSERT_EQ(echoes.size(), prompts.size());
  for (size_t p = 0; p < prompts.size(); ++p) {
    ASSERT_EQ(echoes[p].size(), prompts[p].size() + 1);
    EXPECT_TRUE(std::isnan(echoes[p][0].logprob));
    EXPECT_TRUE(echoes[p][0].top.empty());
    EXPECT_EQ(echoes[p][0].id, prompts[p][0]);
    for (size_t i = 1; i < echoes[p].size(); ++i) {
      const EchoedToken& t = echoes[p][i];
      const auto row = runner.logits_after(std::span(prompts[p]).first(i));
      double total = 0;
      for (float x : row) total += std::exp(static_cast<double>(x));
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      EXPECT_EQ(t.id, i < prompts[p].size() ? prompts[p][i] : best);
      // Exps of floats in single precision have a relative error of 2^-22 each, and so has their sum.
      EXPECT_NEAR(t.logprob, static_cast<double>(row[static_cast<size_t>(t.id)]) - std::log(total), 1e-6);
      ASSERT_EQ(t.top.size(), 3u);
      EXPECT_EQ(t.top[0].first, best);
      EXPECT_GE(t.top[0].second, t.top[1].second);
      EXPECT_GE(t.top[1].second, t.top[2].second);
    }
    EXPECT_EQ(echoes[p].back().logprob, echoes[p].back().top[0].second);  // the same number, as the harness compares it
  }
}

// This scores a choice as the harness does: the prompt is context + continuation, and the last echoed token is
// dropped.
TEST(Echo, SumsAreTheScoresOfEvalTasks) {
  const std::vector<Continuation> continuations = {
      {"The sky is", " blue and wide"}, {"The sky is", " green"}, {"One two three", " four"}};
  FakeRunner runner = echo_runner();
  const auto scores = score_continuations(runner, echo_tokenizer(), continuations, Activations::f32);
  std::vector<std::vector<int32_t>> prompts;
  for (const Continuation& c : continuations) prompts.push_back(echo_tokenizer().encode(c.context + c.text));
  // One continuation is what greedy decoding says after a context, so that both outcomes of "greedy" occur.
  const auto context = echo_tokenizer().encode(continuations[0].context);
  prompts.push_back(context);
  prompts.back().push_back(argmax(runner.logits_after(context)));
  const auto echoes = echo(runner, prompts, 1, Activations::f32);
  const auto judge = [&](size_t prompt, size_t first) {
    double sum = 0;
    bool greedy = true;
    for (size_t i = first; i + 1 < echoes[prompt].size(); ++i) {
      sum += echoes[prompt][i].logprob;
      greedy = greedy && echoes[prompt][i].logprob == echoes[prompt][i].top[0].second;
    }
    return std::pair(sum, greedy);
  };
  for (size_t i = 0; i < continuations.size(); ++i) {
    const auto [sum, greedy] = judge(i, echo_tokenizer().encode(continuations[i].context).size());
    EXPECT_EQ(sum, scores[i].log_likelihood);
    EXPECT_EQ(greedy, scores[i].greedy);
  }
  EXPECT_TRUE(judge(3, context.size()).second);
}

TEST(Echo, Refusals) {
  FakeRunner runner = echo_runner();
  const std::vector<std::vector<int32_t>> empty = {{}}, good = {{1, 2}}, full = {std::vector<int32_t>(64, 1)};
  EXPECT_THROW(echo(runner, empty, 1, Activations::f32), Error);
  EXPECT_THROW(echo(runner, full, 1, Activations::f32), Error);
  EXPECT_THROW(echo(runner, good, 0, Activations::f32), Error);
  EXPECT_THROW(echo(runner, good, echo_tokenizer().vocab_size() + 1, Activations::f32), Error);
}

}  // namespace
}  // namespace fidelio
