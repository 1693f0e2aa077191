// These tests compare our logits with those of transformers (tools/make_model_goldens.py; models/data/report.json),
// with FP32 activations and cache, on every instruction set of this machine.
//
// The tolerance is ||ours - theirs|| <= 1e-5 ||theirs|| over each row of logits. It is norm-wise because a single logit
// may be near zero while its error is that of the sum it came from. Both sides round in FP32 (u = 2^-24 = 6e-8), in
// different orders. A linear of K <= 1280 inputs errs by about sqrt(K) u = 2e-6 at worst with random signs, the
// residual stream collects 2 L + 1 of those, each relative to its own small share of the stream, and an angle of rope
// at position p errs by p u <= 3e-6 here. transformers differs from itself in FP64 by 4e-7 to 1e-6 on the tiny models,
// so 1e-5 leaves room for the order alone. The error of a wrong model is far above it: one window position too many
// moves a row by > 1e-1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/thread_pool.h"
#include "engine/sampler.h"
#include "eval/fidelity/perplexity.h"
#include "models.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {
namespace {

constexpr double kTolerance = 1e-5;

using Ids = std::vector<int32_t>;

// Continues greedily. Each choice must be safe: the gap between the two best logits must exceed the sum of their
// possible errors, 2 kTolerance ||row||, as otherwise the golden could be met or missed by chance.
Ids greedy(Runner& runner, const Ids& prompt, size_t tokens, const std::vector<int32_t>& stop) {
  const auto pages = first_pages(static_cast<int64_t>(prompt.size() + tokens));
  const auto v = static_cast<size_t>(runner.config().v);
  std::vector<float> logits =
      run_chunks(runner, prompt, {static_cast<int64_t>(prompt.size())}, pages, Activations::f32);
  Ids ids;
  for (;;) {
    const auto row = std::span(logits).last(v);
    ids.push_back(argmax(row));
    double norm = 0;
    float second = -INFINITY;
    for (size_t i = 0; i < v; ++i) {
      norm += double{row[i]} * row[i];
      if (static_cast<int32_t>(i) != ids.back()) second = std::max(second, row[i]);
    }
    EXPECT_GT(row[static_cast<size_t>(ids.back())] - second, 2 * kTolerance * std::sqrt(norm))
        << "a near tie at step " << ids.size() - 1;
    if (ids.size() == tokens || std::count(stop.begin(), stop.end(), ids.back()) > 0) return ids;
    logits = run_chunks(runner, std::span(ids).last(1), {1}, pages, Activations::f32,
                        static_cast<int64_t>(prompt.size() + ids.size()) - 1);
  }
}

struct TinyModels : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, TinyModels, testing::ValuesIn(kTinyModels), [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Experts, TinyModels, testing::ValuesIn(kExpertModels),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Families, TinyModels, testing::ValuesIn(kFamilyModels),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Delta, TinyModels, testing::ValuesIn(kDeltaModels),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Routed, TinyModels, testing::ValuesIn(kRoutedModels),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Sinks, TinyModels, testing::ValuesIn(kSinkModels),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Gemma4, TinyModels, testing::ValuesIn(kGemma4Models),
                         [](const auto& info) { return info.param; });

TEST_P(TinyModels, GiveTransformersLogitsAndContinuation) {
  const auto golden = golden_json(GetParam());
  const std::vector<float> expected = golden_logits(GetParam());
  const Ids ids = golden["ids"];
  const Checkpoint checkpoint = Checkpoint::open(tiny_model(GetParam()));
  const auto v = static_cast<size_t>(checkpoint.config().v);
  ASSERT_EQ(expected.size(), ids.size() * v);
  for (const std::string& isa : isa_names()) {
    SCOPED_TRACE(isa);
    RunnerOptions options = exact_options(isa);
    options.context = static_cast<int64_t>(ids.size() + golden["greedy"].size());  // transformers went this far.
    const auto runner = make_cpu_runner(checkpoint, options);
    const std::vector<float> logits = run_whole(*runner, ids, Activations::f32);
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t row = 0; row < ids.size(); ++row)
      EXPECT_LE(relative_distance(std::span(logits).subspan(row * v, v), std::span(expected).subspan(row * v, v)),
                kTolerance)
          << "row " << row;
    EXPECT_EQ(greedy(*runner, ids, golden["greedy"].size(), {}), golden["greedy"].get<Ids>());
  }
}

// The golden above goes as far as rope is plain. Longer contexts are refused, and opening the model notes that.
TEST(DynamicRope, EndsWhereItWouldChange) {
  const Checkpoint checkpoint = Checkpoint::open(tiny_model("dynamic_rope"));
  EXPECT_THAT(checkpoint.notes(),
              testing::ElementsAre(testing::HasSubstr("context ends at max_position_embeddings = 64")));
  RunnerOptions options = exact_options();
  options.cache_tokens = 128;
  const auto runner = make_cpu_runner(checkpoint, options);
  const Ids ids(65, 3);
  EXPECT_EQ(run_whole(*runner, std::span(ids).first(64), Activations::f32).size(), 64u * 128);
  EXPECT_THAT(
      [&] { run_whole(*runner, ids, Activations::f32); },
      testing::ThrowsMessage<Error>(testing::HasSubstr("position 64 of a model whose rotary frequencies hold")));
}

struct BundledModels : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, BundledModels, testing::Values("quill-26m", "quill-1m"),
                         [](const auto& info) { return info.param == "quill-26m" ? "Quill26m" : "Quill1m"; });

TEST_P(BundledModels, GiveTransformersLogits) {
  const auto golden = golden_json(GetParam());
  const std::vector<float> expected = golden_logits(GetParam());
  const Ids ids = golden["ids"], columns = golden["columns"];
  const Checkpoint checkpoint = Checkpoint::open(source_path("models/" + GetParam()));
  const auto v = static_cast<size_t>(checkpoint.config().v);
  for (const std::string& isa : isa_names()) {
    SCOPED_TRACE(isa);
    const auto runner = make_cpu_runner(checkpoint, exact_options(isa));
    const std::vector<float> logits = run_whole(*runner, ids, Activations::f32);
    std::vector<float> kept;
    double norm = 0;
    for (float x : logits) norm += double{x} * x;
    for (size_t row = 0; row < ids.size(); ++row)
      for (int32_t column : columns) kept.push_back(logits[row * v + static_cast<size_t>(column)]);
    EXPECT_LE(relative_distance(kept, expected), kTolerance);
    EXPECT_NEAR(std::sqrt(norm), golden["norm"].get<double>(), kTolerance * golden["norm"].get<double>());
  }
}

TEST_P(BundledModels, ContinueAsTransformersGreedily) {
  const std::string folder = source_path("models/" + GetParam());
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const auto chat = ChatTemplate::load(folder);
  const auto stop = stop_token_ids(folder, [&](std::string_view token) { return tokenizer.id_of(token); });
  const auto runner = make_cpu_runner(checkpoint, exact_options());
  const nlohmann::json golden = golden_json(GetParam());
  ASSERT_EQ(golden["runs"].size(), 10u);
  for (const auto& run : golden["runs"]) {
    SCOPED_TRACE(run.dump());
    Ids prompt;
    if (run.contains("chat")) {
      ASSERT_TRUE(chat.has_value());
      prompt = tokenizer.encode(chat->render(std::vector<ChatMessage>{{"user", run["chat"]}}), false);
    } else {
      prompt = tokenizer.encode(run["prompt"].get<std::string>());
    }
    EXPECT_EQ(prompt, run["ids"].get<Ids>());
    EXPECT_EQ(greedy(*runner, prompt, 32, stop), run["greedy"].get<Ids>());
  }
}

// models/data/report.json has the five best tokens of every position, the first logits of the last, and the norm of
// all. The authors of the model made them in FP32 with transformers.
TEST_P(BundledModels, GiveTheNumbersTheyWerePublishedWith) {
  const auto report =
      nlohmann::json::parse(read_text_file(source_path("models/data/report.json")))[GetParam()]["golden"];
  const Ids ids = report["ids"];
  const Checkpoint checkpoint = Checkpoint::open(source_path("models/" + GetParam()));
  const auto v = static_cast<size_t>(checkpoint.config().v);
  const auto runner = make_cpu_runner(checkpoint, exact_options());
  const std::vector<float> logits = run_whole(*runner, ids, Activations::f32);
  double norm = 0;
  for (float x : logits) norm += double{x} * x;
  EXPECT_NEAR(std::sqrt(norm), report["norm"].get<double>(), kTolerance * report["norm"].get<double>());
  const auto head = report["last_logits_head"].get<std::vector<float>>();
  const auto last = std::span(logits).last(v);
  double row_norm = 0;
  for (float x : last) row_norm += double{x} * x;
  for (size_t i = 0; i < head.size(); ++i) EXPECT_NEAR(last[i], head[i], kTolerance * std::sqrt(row_norm)) << i;
  for (size_t row = 0; row < ids.size(); ++row) {
    const auto values = std::span(logits).subspan(row * v, v);
    std::vector<int32_t> order(v);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + 5, order.end(), [&](int32_t a, int32_t b) {
      return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
    });
    order.resize(5);
    EXPECT_EQ(order, report["top"][row].get<Ids>()) << "position " << row;
  }
}

PerplexityReport measure(const std::string& name, int64_t context, int64_t windows) {
  const std::string folder = source_path("models/" + name), text = source_path("models/data/docs-heldout.txt");
  const Checkpoint checkpoint = Checkpoint::open(folder);
  RunnerOptions options = exact_options("", 0);
  options.max_rows = options.cache_tokens = context;
  const auto runner = make_cpu_runner(checkpoint, options);
  const std::vector<EvalText> texts = {
      {"docs-heldout", "", Tokenizer::load(folder).encode(read_text_file(text), false)}};
  ThreadPool pool;
  return measure_perplexity(
      *runner, texts,
      {.windows = {.context = context, .windows = windows}, .mode = Activations::f32, .bootstrap = {.resamples = 2}},
      pool);
}

// This tests text, tokenizer, windows and model together. A token's loss moves by at most twice the largest error of a
// logit of its row. Single errors are about 1e-5 ||row|| / sqrt(v) = 5e-5 nats and average out over the window, so a
// thousandth of a nat (0.1% of perplexity, the required width) is far outside them.
constexpr double kLossTolerance = 1e-3;

TEST_P(BundledModels, LoseAsTransformersOnText) {
  const nlohmann::json losses = golden_json(GetParam())["losses"];
  const int64_t context = GetParam() == "quill-26m" ? 1024 : 512;  // It is each model's own context.
  const PerplexityReport report = measure(GetParam(), context, static_cast<int64_t>(losses.size()));
  ASSERT_EQ(report.windows.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_EQ(report.windows[i].tokens, context - 1);
    EXPECT_NEAR(report.windows[i].nll, losses[i].get<double>(), kLossTolerance * static_cast<double>(context - 1))
        << "window " << i;
  }
}

// This uses the whole text. quill-26m would take a minute for it: fidelio eval models/quill-26m --text ...
// --activations f32.
TEST(Perplexity, OfQuill1mIsAsPublished) {
  const auto published =
      nlohmann::json::parse(read_text_file(source_path("models/data/report.json")))["quill-1m"]["docs-heldout"];
  const PerplexityReport report = measure("quill-1m", published["context"], 0);
  EXPECT_EQ(report.tokens(), published["tokens"].get<int64_t>());
  EXPECT_NEAR(std::log(report.perplexity().value), std::log(published["ppl_fp32"].get<double>()), kLossTolerance);
}

}  // namespace
}  // namespace fidelio
