// These tests run, as a user does, the verbs that put questions and prompts to models: eval --tasks, recovery, compare,
// noise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;

// `model` is quill-1m, `coarse` is the same in 2 bits, and `own.jsonl` has eight questions whose right answers are
// quill-1m's greedy ones. It is a base model and answers none of the bundled questions, so its own answers are made the
// truth.
class Studies : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TestFolder;
    run("ln -s '" + source_path("models/quill-1m") + "' model; ln -s '" + source_path("models/data") + "' data");
    run("fidelio quantize model --method rtn --format int2g32 -o coarse");
    run("fidelio eval model --tasks data/tasks.jsonl --task recall --task word_problem --limit 8 --max-tokens 12 "
        "--plain "
        "--cache first.jsonl");
    std::map<std::string, std::string> questions;
    for (const json& item : lines("data/tasks.jsonl")) questions[item["id"]] = item["question"];
    std::string own;
    std::map<std::string, int> taken;
    for (const auto& [id, answer] : answers("first.jsonl"))
      // A model that opens a thought and does not end it has given no answer.
      if (answer["text"].get<std::string>().find("<think>") == std::string::npos && ++taken[answer["task"]] <= 4)
        own +=
            json{
                {"id", id}, {"task", answer["task"]}, {"question", questions[answer["id"]]}, {"answer", answer["text"]}}
                .dump() +
            "\n";
    write_file_atomically(path("own.jsonl"), own);
  }
  static void TearDownTestSuite() { delete std::exchange(folder_, nullptr); }

  static std::string path(const std::string& name) { return *folder_ / name; }
  static CommandResult run(const std::string& command) {
    CommandResult result = run_command(folder_->path(), command);
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
    return result;
  }
  static json report(const std::string& command) { return json::parse(run(command + " --json - 2>/dev/null").out); }
  static std::vector<json> lines(const std::string& name) {
    std::vector<json> all;
    std::istringstream text(read_text_file(path(name)));
    for (std::string line; std::getline(text, line);) all.push_back(json::parse(line));
    return all;
  }
  // Returns the answers in a cache file, by question.
  static std::map<std::string, json> answers(const std::string& name) {
    std::map<std::string, json> by_id;
    for (const json& line : lines(name))
      if (line.contains("id")) by_id[line["id"]] = line;
    return by_id;
  }
  static const TestFolder* folder_;
};
const TestFolder* Studies::folder_ = nullptr;

const std::string kOwn = " --tasks own.jsonl --plain --max-tokens 12";

TEST_F(Studies, AnswersAreTheSameInEveryBatchAndGoOnWhereTheyEnded) {
  const json first = report("fidelio eval model --limit 2 --batch 1 --cache grown.jsonl" + kOwn)["runs"][0];
  EXPECT_EQ(first["timings"]["questions_asked"], 4);  // These are two of each task.
  const json grown = report("fidelio eval model --batch 3 --cache grown.jsonl" + kOwn)["runs"][0];
  EXPECT_EQ(grown["timings"]["questions_asked"], 4);  // These are the other four.
  EXPECT_FALSE(grown["timings"].contains("tokens_per_second"));
  const json whole = report("fidelio eval model --batch 8 --cache whole.jsonl" + kOwn)["runs"][0];
  EXPECT_EQ(whole["timings"]["questions_asked"], 8);
  EXPECT_EQ(answers("grown.jsonl"), answers("whole.jsonl"));
  EXPECT_EQ(answers("grown.jsonl").size(), 8u);
  EXPECT_EQ(grown["accuracy"], whole["accuracy"]);
  EXPECT_EQ(whole["accuracy"]["value"], 1);
}

TEST_F(Studies, ACacheOfOtherSettingsIsRefused) {
  run("fidelio eval model --cache settings.jsonl" + kOwn);
  for (const std::string& other : {"fidelio eval coarse --cache settings.jsonl" + kOwn,
                                   "fidelio eval model --kv i8 --cache settings.jsonl" + kOwn}) {
    const CommandResult refused = run_command(folder_->path(), other);
    EXPECT_EQ(refused.code, 1) << other;
    EXPECT_THAT(refused.err, testing::HasSubstr("settings.jsonl holds results of other settings"));
  }
}

TEST_F(Studies, SampledAnswersAreAFunctionOfTheSeed) {
  report("fidelio eval model --recommended --seeds 2 --cache sampled.jsonl" + kOwn);
  report("fidelio eval model --recommended --seed 1 --batch 1 --cache again.jsonl" + kOwn);
  EXPECT_NE(answers("sampled-seed0.jsonl"), answers("sampled-seed1.jsonl"));
  EXPECT_EQ(answers("again-seed1.jsonl"), answers("sampled-seed1.jsonl"));
}

TEST_F(Studies, RecoveryIsOneForTheModelItselfAndLessForACoarseOne) {
  run("ln -sfn model same");
  const json r = report("fidelio recovery model same coarse --greedy --report recovery.html --csv tables" + kOwn);
  ASSERT_EQ(r["models"].size(), 3u);
  EXPECT_EQ(r["models"][1]["mean_recovery"]["value"], 1);
  EXPECT_EQ(r["models"][1]["difference"]["value"], 0);
  // Eight questions show nothing, not even about a model against itself.
  EXPECT_FALSE(r["models"][1]["lossless"].get<bool>());
  EXPECT_FALSE(r["models"][1]["different"].get<bool>());
  EXPECT_EQ(r["models"][1]["questions"], 8);
  EXPECT_EQ(r["models"][1]["questions_needed"], 370);
  EXPECT_LT(r["models"][1]["mean_recovery"]["ci95"][0], 0.9);
  for (const json& accuracy : r["models"][1]["accuracy"]) EXPECT_LT(accuracy["ci95"][0], 0.9);
  // Two-bit rounding of so small a model leaves hardly any answer as it was.
  for (const json& accuracy : r["models"][2]["accuracy"]) EXPECT_LT(accuracy["value"], 1);
  EXPECT_LT(r["models"][2]["mean_recovery"]["value"], 1);
  EXPECT_FALSE(r["models"][2]["lossless"].get<bool>());
  EXPECT_TRUE(r["models"][2]["different"].get<bool>());
  const std::string page = read_text_file(path("recovery.html"));
  for (const char* part : {"Recovery by task", "not shown to be lossless", "8 questions are too few to tell",
                           "about 370 needed", "<svg", "coarse"})
    EXPECT_THAT(page, testing::HasSubstr(part));
  EXPECT_THAT(read_text_file(path("tables/1-accuracy-and-recovery.csv")),
              testing::StartsWith("model,bits,recovery [95%],lossless,different,recall,word_problem"));
}

TEST_F(Studies, AModelAgreesWithItselfInEveryToken) {
  const json same = report("fidelio compare model model --prompts own.jsonl --plain --max-tokens 12");
  EXPECT_EQ(same["prompts"].size(), 8u);
  EXPECT_EQ(same["divergent"], 0);
  EXPECT_EQ(same["agreement"]["value"], 1);
  const json coarse = report(
      "fidelio compare model coarse --prompts own.jsonl --plain --max-tokens 12 --limit 3 --report compare.html");
  EXPECT_EQ(coarse["prompts"].size(), 3u);
  EXPECT_GT(coarse["divergent"], 0);
  EXPECT_NEAR(coarse["agreement"]["value"].get<double>(),
              1 - coarse["divergent"].get<double>() / coarse["tokens"].get<double>(), 1e-12);  // This is FP64.
  EXPECT_THAT(read_text_file(path("compare.html")), testing::HasSubstr("coarse"));
}

TEST_F(Studies, MoreNoiseCostsMore) {
  const std::string command =
      "fidelio noise model --text data/docs-heldout.txt --context 128 --windows 6 --levels 0.01,0.02,0.4";
  const json r = report(command + " --report noise.html" + kOwn);
  const json& levels = r["levels"];
  ASSERT_EQ(levels.size(), 3u);
  for (size_t i = 1; i < levels.size(); ++i) {
    EXPECT_GT(levels[i]["kl"]["value"], levels[i - 1]["kl"]["value"]);
    EXPECT_LT(levels[i]["ear"]["value"], levels[i - 1]["ear"]["value"]);
  }
  EXPECT_GT(levels[0]["kl"]["value"], 0);
  for (const json& accuracy : r["accuracy_without_noise"]) EXPECT_EQ(accuracy["value"], 1);
  EXPECT_LT(r["recovery"]["points"][2]["mean_recovery"]["value"], 1);
  // Only the first two lie below KL 0.01, and a line through the origin and them has this slope.
  ASSERT_LE(levels[1]["kl"]["value"], 0.01);
  const double x0 = 1e-4, x1 = 4e-4, y0 = levels[0]["kl"]["value"], y1 = levels[1]["kl"]["value"];
  EXPECT_NEAR(r["kl_by_noise_power"]["slope"].get<double>() / ((x0 * y0 + x1 * y1) / (x0 * x0 + x1 * x1)), 1, 1e-12);
  const json again = report(command)["levels"], other = report(command + " --seed 1")["levels"];
  for (size_t i = 0; i < levels.size(); ++i) {
    EXPECT_EQ(again[i]["kl"], levels[i]["kl"]);  // It is a function of the seed.
    EXPECT_NE(other[i]["kl"], levels[i]["kl"]);
  }
  EXPECT_THAT(read_text_file(path("noise.html")), testing::HasSubstr("<svg"));
  // Without such a level there is no line, and none is printed.
  const CommandResult loud = run_command(folder_->path(), command + " --linear-below 1e-9");
  EXPECT_THAT(loud.out, testing::HasSubstr("KL: no level has KL <= 1e-09, so no line is fitted"));
}

// Both grids are compared layer after layer. A side that is a checkpoint ends at the value that `eval` measures for the
// checkpoint.
TEST_F(Studies, LayersOnASymmetricGridLoseMore) {
  const std::string text = " --text data/docs-heldout.txt --context 128 --windows 6";
  const json r = report("fidelio gamma model --bits 4 --group 32 --report gamma.html" + text)["text"];
  const json &symmetric = r["symmetric"]["layers"], &asymmetric = r["asymmetric"]["layers"];
  ASSERT_GE(symmetric.size(), 2u);
  ASSERT_EQ(symmetric.size(), asymmetric.size());
  for (size_t l = 1; l < symmetric.size(); ++l) {
    EXPECT_GT(symmetric[l]["kl"]["value"], symmetric[l - 1]["kl"]["value"]);
    EXPECT_GT(asymmetric[l]["kl"]["value"], asymmetric[l - 1]["kl"]["value"]);
  }
  EXPECT_GT(symmetric.back()["kl"]["value"], asymmetric.back()["kl"]["value"]);
  ASSERT_EQ(r["flips_ratio"].size(), 7u);
  for (size_t bin = 0; bin < 7; ++bin) {
    const json &s = r["symmetric"]["flips_by_entropy"][bin]["flips"]["value"],
               &a = r["asymmetric"]["flips_by_entropy"][bin]["flips"]["value"];
    if (!a.is_number() || a == 0) continue;
    EXPECT_NEAR(r["flips_ratio"][bin]["ratio"]["value"].get<double>(), s.get<double>() / a.get<double>(), 1e-12);
  }
  const std::string page = read_text_file(path("gamma.html"));
  for (const char* part : {"Flips of the first choice by entropy", "over those of the asymmetric one",
                           "EAR as layer after layer", "int4g32z", "entropy of the original", "layers on the grid"})
    EXPECT_THAT(page, testing::HasSubstr(part));

  run("fidelio quantize model --method rtn --format int2g32z --keep-embedding -o rounded");
  const json given = report("fidelio gamma model --asymmetric rounded" + text)["text"]["asymmetric"];
  const json whole = report("fidelio eval rounded --reference model --activations f32 --report eval.html" + text);
  EXPECT_EQ(given["name"], "rounded");
  EXPECT_EQ(given["layers"].back()["kl"], whole["kl"]);
  EXPECT_EQ(given["flips_by_entropy"], whole["flips_by_entropy"]);
  EXPECT_THAT(read_text_file(path("eval.html")), testing::HasSubstr("Flips of the first choice by entropy"));
}

}  // namespace
}  // namespace fidelio
