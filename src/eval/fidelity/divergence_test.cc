#include "eval/fidelity/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

using testing::HasSubstr;
using testing::Not;

const Tokenizer& tokenizer() {
  static const Tokenizer t = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-26m");
  return t;
}

FakeRunner make_runner(double noise) {
  RunnerOptions options;
  options.max_rows = 64;
  options.max_logit_rows = 16;
  options.cache_tokens = 512;
  return FakeRunner({.vocabulary = tokenizer().vocab_size(), .context = 128, .noise = noise}, options);
}

const std::vector<std::string> kPrompts = {"How do <pages> work?", "A second one", "And a third"};

DivergenceReport measure(FakeRunner& a, FakeRunner& b, int64_t* last = nullptr) {
  return measure_divergence(a, b, tokenizer(), plain_prompt(tokenizer()), kPrompts,
                            {.max_tokens = 25, .name_a = "exact", .name_b = "<small>"},
                            [=](int64_t done, int64_t total) {
                              EXPECT_EQ(total, 6);
                              if (last != nullptr) *last = done;
                            });
}

TEST(Divergence, AModelAgreesWithItself) {
  FakeRunner a = make_runner(0), b = make_runner(0);
  int64_t last = 0;
  const DivergenceReport r = measure(a, b, &last);
  EXPECT_EQ(last, 6);
  EXPECT_EQ(r.tokens(), 75);
  EXPECT_EQ(r.divergent(), 0);
  EXPECT_EQ(r.agreement().value, 1);
  EXPECT_TRUE(substitutions(r).empty());
}

TEST(Divergence, EveryPositionIsComparedAfterTheFirstModelsTokens) {
  FakeRunner a = make_runner(0), b = make_runner(0.5);
  const DivergenceReport r = measure(a, b);
  int64_t divergent = 0;
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    std::vector<int32_t> history = tokenizer().encode(kPrompts[i]);
    std::string text;
    for (size_t k = 0; k < r.prompts[i].tokens.size(); ++k) {
      const TokenDivergence& t = r.prompts[i].tokens[k];
      EXPECT_EQ(t.id, argmax(a.logits_after(history)));
      EXPECT_EQ(t.other, argmax(b.logits_after(history)));
      EXPECT_GE(t.q_other, t.q_token);
      divergent += t.id != t.other;
      history.push_back(t.id);
      text += r.prompts[i].texts[k];
    }
    EXPECT_EQ(text, tokenizer().decode(std::span(history).subspan(tokenizer().encode(kPrompts[i]).size()), false));
  }
  EXPECT_GT(divergent, 0);
  EXPECT_EQ(r.divergent(), divergent);
  EXPECT_NEAR(r.agreement().value, 1 - static_cast<double>(divergent) / 75, 1e-12);
  int64_t substituted = 0;
  for (const Substitution& s : substitutions(r, 1000)) substituted += s.count;
  EXPECT_EQ(substituted, divergent);
}

TEST(Divergence, ReportsAsJsonAndAsASafePage) {
  FakeRunner a = make_runner(0), b = make_runner(0.5);
  const DivergenceReport r = measure(a, b);
  const nlohmann::json j = to_json(r, tokenizer());
  EXPECT_EQ(j["tokens"], 75);
  EXPECT_EQ(j["prompts"][0]["divergent"].size(), static_cast<size_t>(r.prompts[0].divergent()));
  const std::string page = to_html(r, tokenizer());
  size_t marks = 0;
  for (size_t at = 0; (at = page.find("<mark ", at)) != std::string::npos; ++at) ++marks;
  EXPECT_EQ(static_cast<int64_t>(marks), r.divergent());
  EXPECT_THAT(page, HasSubstr("How do &lt;pages&gt; work?"));
  EXPECT_THAT(page, HasSubstr("&lt;small&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<small>")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace fidelio
