// These tests evaluate the bundled models with the kernels that serve them.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "eval/studies/compare.h"
#include "eval/tasks/tasks.h"
#include "models.h"

namespace fidelio {
namespace {

const std::string kModels = FIDELIO_SOURCE_DIR "/models/";

EvalText heldout(const Tokenizer& tokenizer) {
  return {"docs-heldout", "", tokenizer.encode(read_text_file(kModels + "data/docs-heldout.txt"), false)};
}

std::unique_ptr<Runner> open_runner(const std::string& name, RunnerOptions options) {
  options.kv = options.mode == Activations::f32 ? KvFormat::f32 : KvFormat::f16;
  return make_cpu_runner(Checkpoint::open(kModels + name), options);
}

// The expected figure is that of transformers in models/data/report.json, by the same protocol.
TEST(Evaluation, PerplexityIsThatOfTransformers) {
  const Tokenizer tokenizer = Tokenizer::load(kModels + "quill-1m");
  const EvalText text = heldout(tokenizer);
  const auto runner = open_runner("quill-1m", {.isa = "", .mode = Activations::f32});
  ThreadPool pool;
  const PerplexityReport report =
      measure_perplexity(*runner, std::span(&text, 1), {.windows = {.context = 512}, .mode = Activations::f32}, pool);
  const nlohmann::json expected =
      nlohmann::json::parse(read_text_file(kModels + "data/report.json"))["quill-1m"]["docs-heldout"];
  EXPECT_EQ(report.tokens(), expected["tokens"].get<int64_t>());
  // Two FP32 programs differ by some 1e-6 in a logit; the acceptance is 0.1%.
  EXPECT_NEAR(report.perplexity().value / expected["ppl_fp32"].get<double>(), 1, 1e-5);
}

TEST(Evaluation, AModelIsFaithfulToItselfExactly) {
  const Tokenizer tokenizer = Tokenizer::load(kModels + "quill-1m");
  const EvalText text = heldout(tokenizer);
  const auto reference = open_runner("quill-1m", {.isa = "", .mode = Activations::f32});
  // The second runner is fed in other batches, which must not change a bit.
  const auto twin =
      open_runner("quill-1m", {.isa = "", .max_rows = 100, .max_logit_rows = 33, .mode = Activations::f32});
  ThreadPool pool;
  const FidelityReport report =
      compare_models(*reference, *twin, std::span(&text, 1),
                     {.windows = {.context = 256, .windows = 8}, .candidate_mode = Activations::f32}, pool);
  EXPECT_EQ(report.ear().value, 1);
  EXPECT_EQ(report.mean_of(&FidelitySums::ear_renormalised).value, 1);
  EXPECT_EQ(report.kl().value, 0);
  EXPECT_EQ(report.mean_of(&FidelitySums::ear_raw).value, report.mean_of(&FidelitySums::top_k_mass).value);
}

// A search measures its source once. The kept streams give the same figures to the last bit without running the layers
// again.
TEST(Evaluation, KeptStreamsGiveTheSameFiguresWithoutTheLayers) {
  const Tokenizer tokenizer = Tokenizer::load(kModels + "quill-1m");
  const EvalText text = heldout(tokenizer);
  const auto reference = open_runner("quill-1m", {.isa = "", .max_rows = 100, .mode = Activations::f32});
  const auto candidate = open_runner("quill-1m", {.isa = "", .max_rows = 100});
  ThreadPool pool;
  const auto compare = [&](Activations mode, KeptStreams* kept) {
    const CompareOptions how{.windows = {.context = 128, .windows = 4}, .candidate_mode = mode};
    return to_json(compare_models(*reference, *candidate, std::span(&text, 1), how, pool, {}, kept)).dump();
  };
  const std::string a16 = compare(Activations::a16, nullptr), a8 = compare(Activations::a8, nullptr);
  ASSERT_NE(a16, a8);
  KeptStreams kept(1 << 30), too_small(1000);
  EXPECT_EQ(compare(Activations::a16, &kept), a16);
  EXPECT_EQ(compare(Activations::a16, &too_small), a16);
  EXPECT_TRUE(kept.complete());
  EXPECT_FALSE(too_small.complete());
  reference->set_linear({0, Role::down}, reference->linear({1, Role::down}));
  EXPECT_EQ(compare(Activations::a8, &kept), a8);       // The source is as it was.
  EXPECT_NE(compare(Activations::a8, &too_small), a8);  // It runs again, with the present weight.
  const EvalText other{"other", "", std::vector<int32_t>(text.ids.begin(), text.ids.begin() + 300)};
  EXPECT_THROW(
      compare_models(*reference, *candidate, std::span(&other, 1), {.windows = {.context = 128}}, pool, {}, &kept),
      Error);
}

// This evaluates a text of one window, by a model whose context no memory could hold. The cache is as long as the text,
// and figures that one window cannot give are not printed.
TEST(Evaluation, AShortTextNeedsNoMoreThanItHas) {
  const TestFolder folder;
  copy_model(kModels + "quill-1m", folder / "model");
  const CommandResult result = run_command(
      folder.path(), "head -c 900 '" + kModels +
                         "data/docs-heldout.txt' > text.txt; sed -i 's|\"max_position_embeddings\": "
                         "[^,]*|\"max_position_embeddings\": 2000000000|' model/config.json; fidelio eval model "
                         "--reference model --text text.txt");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("tokens in 1 windows"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("nan"), std::string::npos) << result.out;
}

// A bootstrap of few windows misses more often than 5 times in 100, and the output says so.
TEST(Evaluation, IntervalsOfFewWindowsSayWhatTheyAreWorth) {
  const TestFolder folder;
  const std::string eval =
      "fidelio eval '" + kModels + "quill-1m' --text '" + kModels + "data/docs-heldout.txt' --context 32 --windows ";
  const std::string reference = " --reference '" + kModels + "quill-1m'";
  for (const std::string& with : {std::string(), reference}) {
    EXPECT_NE(run_command(folder.path(), eval + "2" + with).out.find("too narrow, and hold the true value in about 51"),
              std::string::npos);
    EXPECT_NE(
        run_command(folder.path(), eval + "12" + with).out.find("too narrow, and hold the true value in about 88"),
        std::string::npos);
    for (const char* none : {"1", "20"})
      EXPECT_EQ(run_command(folder.path(), eval + none + with).out.find("too narrow"), std::string::npos);
  }
}

TEST(Evaluation, GreedyAnswersAreThoseOfTransformers) {
  std::map<std::string, std::string> expected;
  std::ifstream golden(kModels + "data/tasks-greedy.jsonl");
  for (std::string line; std::getline(golden, line);) {
    const nlohmann::json j = nlohmann::json::parse(line);
    expected[j["id"]] = j["text"];
  }
  TaskSet set = read_tasks(kModels + "data/tasks.jsonl");
  std::vector<TaskItem> some;
  for (size_t i = 7; i < set.items.size(); i += 150) some.push_back(set.items[i]);
  set.items = some;
  const Tokenizer tokenizer = Tokenizer::load(kModels + "quill-26m");
  const ChatTemplate chat = *ChatTemplate::load(kModels + "quill-26m");
  const auto runner = open_runner(
      "quill-26m", {.isa = "", .max_rows = 128, .max_logit_rows = 32, .cache_tokens = 16384, .mode = Activations::f32});
  TaskOptions options;
  options.mode = Activations::f32;
  options.stop_ids =
      stop_token_ids(kModels + "quill-26m", [&](std::string_view token) { return tokenizer.id_of(token); });
  for (const ItemResult& r : run_tasks({runner.get(), &tokenizer, chat_prompt(tokenizer, chat)}, set, options))
    EXPECT_EQ(r.text, expected.at(r.id)) << r.id;
}

TEST(Evaluation, WhatARequestYieldsDoesNotDependOnTheOthers) {
  const Tokenizer tokenizer = Tokenizer::load(kModels + "quill-1m");
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 12; ++i) {
    GenerationRequest r;
    r.prompt = tokenizer.encode(
        std::string("The directory of the package, the file and the user ").substr(0, static_cast<size_t>(8 + 4 * i)));
    r.max_tokens = 20 + i;
    r.stop_ids = {2};
    if (i % 2 == 0) r.sampling = {.temperature = 1, .top_p = 0.9, .logit_bias = {}, .seed = static_cast<uint64_t>(i)};
    requests.push_back(r);
  }
  for (Activations mode : {Activations::f32, Activations::a16}) {
    const auto together =
        open_runner("quill-1m", {.isa = "", .max_rows = 64, .max_logit_rows = 16, .cache_tokens = 4096, .mode = mode});
    const auto alone =
        open_runner("quill-1m", {.threads = 1, .isa = "", .max_rows = 5, .max_logit_rows = 1, .mode = mode});
    const auto a = generate(*together, requests, {.reading = mode}), b = generate(*alone, requests, {.reading = mode});
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(a[i].ids, b[i].ids) << i << " " << name_of(mode);
  }
}

}  // namespace
}  // namespace fidelio
