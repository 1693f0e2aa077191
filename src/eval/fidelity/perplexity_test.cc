#include "eval/fidelity/perplexity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/rng.h"
#include "eval/fidelity/fidelity.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

std::vector<std::array<int64_t, 3>> windows(int64_t tokens, const WindowOptions& options) {
  std::vector<std::array<int64_t, 3>> all;
  for (const TextWindow& w : text_windows(tokens, options)) all.push_back({w.begin, w.end, w.first_scored});
  return all;
}

using Windows = std::vector<std::array<int64_t, 3>>;

TEST(Windows, SideBySideDropTheRaggedRest) {
  EXPECT_EQ(windows(11, {.context = 4}), (Windows{{0, 4, 1}, {4, 8, 5}}));
  EXPECT_EQ(windows(8, {.context = 4}), (Windows{{0, 4, 1}, {4, 8, 5}}));
  EXPECT_EQ(windows(11, {.context = 4, .windows = 1}), (Windows{{0, 4, 1}}));
  EXPECT_EQ(windows(3, {.context = 4}), (Windows{{0, 3, 1}}));
}

TEST(Windows, SlidingScoresEveryTokenButTheFirstOnce) {
  EXPECT_EQ(windows(11, {.context = 4, .stride = 2}),
            (Windows{{0, 4, 1}, {2, 6, 4}, {4, 8, 6}, {6, 10, 8}, {8, 11, 10}}));
  EXPECT_EQ(windows(8, {.context = 4, .stride = 3}), (Windows{{0, 4, 1}, {3, 7, 4}, {6, 8, 7}}));
  for (int64_t stride = 1; stride < 10; ++stride) {
    int64_t next = 1;
    for (const TextWindow& w : text_windows(101, {.context = 10, .stride = stride})) {
      EXPECT_EQ(w.first_scored, next);
      next = w.end;
    }
    EXPECT_EQ(next, 101);
  }
}

TEST(Windows, RefusesTheImpossible) {
  EXPECT_THROW(text_windows(1, {}), Error);
  EXPECT_THROW(text_windows(100, {.context = 1}), Error);
  EXPECT_THROW(text_windows(100, {.context = 10, .stride = 11}), Error);
  EXPECT_THROW(text_windows(100, {.context = 10, .stride = -1}), Error);
  EXPECT_THROW(text_windows(100, {.context = 10, .windows = -1}), Error);
  EXPECT_THROW(windows_of({}, {}), Error);
}

EvalText random_text(int64_t tokens, uint64_t seed) {
  Rng rng(seed);
  EvalText text{"text", "digest", {}};
  for (int64_t i = 0; i < tokens; ++i) text.ids.push_back(static_cast<int32_t>(rng.below(23)));
  return text;
}

FakeRunner make_runner(int64_t max_rows, int64_t max_logit_rows, int64_t cache_tokens = 0) {
  RunnerOptions options;
  options.max_rows = max_rows;
  options.max_logit_rows = max_logit_rows;
  options.cache_tokens = cache_tokens;
  return FakeRunner({}, options);
}

TEST(PassPlan, PacksShortSequencesAndChunksLongOnes) {
  const std::vector<int32_t> ids(60, 1);
  const std::vector<ScoredSequence> sequences = {{std::span(ids).first(4), 1},
                                                 {std::span(ids).first(5), 3},
                                                 {std::span(ids).first(4), 1},
                                                 {std::span(ids).first(25), 20}};
  PassPlan plan(sequences, {.max_rows = 8, .max_logit_rows = 4, .cache_pages = 4, .max_positions = 64});
  Batch batch;
  std::vector<ScoredRow> rows;
  std::vector<int64_t> sizes, scored;
  while (plan.next(batch, rows)) {
    sizes.push_back(batch.rows());
    scored.push_back(static_cast<int64_t>(rows.size()));
    EXPECT_EQ(batch.logit_rows.size(), rows.size());
  }
  // The first batch has 3 + 4 rows and the second 3, because 24 do not fit behind them. The 24 rows then come in
  // chunks of 8, with scores from row 19 on.
  EXPECT_THAT(sizes, testing::ElementsAre(7, 3, 8, 8, 8));
  EXPECT_THAT(scored, testing::ElementsAre(5, 3, 0, 0, 5));
  EXPECT_EQ(plan.finished(), 4);
}

TEST(PassPlan, RefusesWhatCannotBeScored) {
  const std::vector<int32_t> ids(60, 1);
  const auto plan = [&](ScoredSequence s, PassLimits limits) {
    const std::vector<ScoredSequence> one = {s};
    PassPlan p(one, limits);
  };
  const PassLimits limits{.max_rows = 8, .max_logit_rows = 4, .cache_pages = 4, .max_positions = 50};
  EXPECT_THROW(plan({std::span(ids).first(1), 1}, limits), Error);
  EXPECT_THROW(plan({std::span(ids).first(5), 0}, limits), Error);
  EXPECT_THROW(plan({std::span(ids).first(5), 5}, limits), Error);
  EXPECT_THROW(plan({ids, 1}, limits), Error);
  EXPECT_THROW(plan({ids, 1}, {.max_rows = 8, .max_logit_rows = 4, .cache_pages = 1, .max_positions = 64}), Error);
}

double nll_by_definition(const EvalText& text, const WindowOptions& options) {
  FakeRunner runner = make_runner(1, 1);
  double nll = 0;
  for (const TextWindow& w : text_windows(static_cast<int64_t>(text.ids.size()), options))
    for (int64_t i = w.first_scored; i < w.end; ++i) {
      const auto logits = runner.logits_after(
          std::span(text.ids).subspan(static_cast<size_t>(w.begin), static_cast<size_t>(i - w.begin)));
      nll += log_sum_exp(logits) - static_cast<double>(logits[static_cast<size_t>(text.ids[static_cast<size_t>(i)])]);
    }
  return nll;
}

TEST(Perplexity, EqualsTheDefinitionForEveryWayOfBatching) {
  const EvalText text = random_text(150, 3);
  ThreadPool pool(3);
  for (const WindowOptions& options : {WindowOptions{.context = 20}, WindowOptions{.context = 64, .stride = 10},
                                       WindowOptions{.context = 20, .windows = 3}}) {
    const double expected = nll_by_definition(text, options);
    std::vector<double> first;
    for (auto [rows, logit_rows, cache] :
         {std::array<int64_t, 3>{512, 128, 0}, {64, 7, 64}, {19, 19, 256}, {5, 1, 64}}) {
      FakeRunner runner = make_runner(rows, logit_rows, cache);
      const PerplexityReport report =
          measure_perplexity(runner, std::span(&text, 1), {.windows = options, .mode = Activations::f32}, pool);
      double nll = 0;
      for (const WindowLoss& w : report.windows) nll += w.nll;
      EXPECT_NEAR(nll, expected, 1e-11 * expected);  // the same numbers are added up in another order
      if (first.empty())
        for (const WindowLoss& w : report.windows) first.push_back(w.nll);
      for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(report.windows[i].nll, first[i]);
      EXPECT_NEAR(report.perplexity().value, std::exp(expected / static_cast<double>(report.tokens())), 1e-9);
      EXPECT_THAT(runner.readings, testing::Each(Reading(Activations::f32)));
    }
  }
}

TEST(Perplexity, ReportNamesTextsAndSettings) {
  const std::vector<EvalText> texts = {random_text(90, 1), random_text(50, 2)};
  FakeRunner runner = make_runner(64, 16);
  ThreadPool pool(1);
  int64_t last = 0;
  const PerplexityReport report =
      measure_perplexity(runner, texts, {.windows = {.context = 20}}, pool, [&](int64_t done, int64_t total) {
        EXPECT_GE(done, last);
        EXPECT_EQ(total, 6);
        last = done;
      });
  EXPECT_EQ(last, 6);
  EXPECT_EQ(report.tokens(), 6 * 19);
  const nlohmann::json j = to_json(report);
  EXPECT_EQ(j["texts"][1]["sha256"], "digest");
  EXPECT_EQ(j["settings"]["context"], 20);
  EXPECT_EQ(j["settings"]["stride"], 20);
  EXPECT_EQ(j["windows"].size(), 6u);
  EXPECT_LT(j["perplexity"]["ci95"][0], j["perplexity"]["value"]);
  EXPECT_GT(j["perplexity"]["ci95"][1], j["perplexity"]["value"]);
}

TEST(Perplexity, RefusesAWindowLongerThanTheContext) {
  const EvalText text = random_text(150, 3);
  FakeRunner runner = make_runner(512, 128);
  ThreadPool pool(1);
  try {
    measure_perplexity(runner, std::span(&text, 1), {.windows = {.context = 100}}, pool);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::AllOf(testing::HasSubstr("100"), testing::HasSubstr("64")));
  }
}

}  // namespace
}  // namespace fidelio
