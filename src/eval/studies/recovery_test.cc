#include "eval/studies/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/rng.h"

namespace fidelio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// There are two tasks of 200 questions. A question is right with the given chance and takes about `thinking` tokens.
ModelRuns model(const std::string& name, double chance, double thinking, int seeds, uint64_t seed) {
  Rng rng(seed);
  ModelRuns m{name, 4.25, {}};
  for (int s = 0; s < seeds; ++s) {
    std::vector<ItemResult> run(400);
    for (size_t i = 0; i < run.size(); ++i) {
      Rng question(77, i);  // questions differ in length, but alike for all models
      run[i].id = fmt::format("{}", i);
      run[i].task = i % 2 == 0 ? "sums" : "words";
      run[i].correct = rng.uniform() < chance;
      run[i].thinking_tokens = static_cast<int64_t>(thinking * (0.5 + question.uniform()) + 5 * rng.normal());
      run[i].output_tokens = run[i].thinking_tokens + 7;
      run[i].finish_reason = rng.uniform() < 0.05 ? "length" : "stop";
    }
    m.runs.push_back(run);
  }
  return m;
}

TEST(Recovery, TableSaysWhatWasLost) {
  const std::vector<ModelRuns> models = {model("exact", 0.95, 100, 3, 1), model("same", 0.95, 100, 3, 2),
                                         model("worse", 0.7, 100, 3, 3)};
  const RecoveryTable table = recovery_table(models, {.margin = 0.03});
  EXPECT_THAT(table.tasks, ElementsAre("sums", "words"));
  const RecoveryRow &exact = table.rows[0], &same = table.rows[1], &worse = table.rows[2];
  EXPECT_EQ(exact.mean_recovery.value, 1);
  EXPECT_LT(exact.mean_recovery.ci95.low, 1);  // 400 questions are no certainty, even for a model against itself
  EXPECT_GT(exact.mean_recovery.ci95.high, 1);
  EXPECT_TRUE(same.verdict.lossless);
  EXPECT_FALSE(same.verdict.different);
  EXPECT_FALSE(worse.verdict.lossless);
  EXPECT_TRUE(worse.verdict.different);
  // There are 600 trials a task. The standard error of an accuracy of .7 is .019, and that of .95 is .009.
  EXPECT_NEAR(worse.accuracy[0].value, 0.7, 4 * 0.019);
  EXPECT_NEAR(worse.mean_recovery.value, 0.7 / 0.95, 4 * 0.019 / 0.95);
  EXPECT_LT(worse.mean_recovery.ci95.high, 1);
  double right = 0;
  for (const auto& run : models[2].runs)
    for (const ItemResult& r : run) right += r.task == "words" && r.correct;
  EXPECT_NEAR(worse.accuracy[1].value, right / 600, 1e-12);
  EXPECT_THAT(to_text(to_table(table)), HasSubstr("worse"));
  EXPECT_EQ(to_json(table)["models"][2]["different"], true);
}

TEST(Recovery, ATaskTheReferenceNeverGetsRightIsLeftOutOfTheMean) {
  ModelRuns reference = model("exact", 1, 100, 1, 1), other = reference;
  for (auto* m : {&reference, &other})
    for (ItemResult& r : m->runs[0])
      if (r.task == "sums") r.correct = false;
  const std::vector<ModelRuns> models = {reference, other};
  const RecoveryTable table = recovery_table(models);
  EXPECT_TRUE(std::isnan(table.rows[1].recovery[0].value));
  EXPECT_EQ(table.rows[1].mean_recovery.value, 1);
}

TEST(Recovery, RefusesResultsThatCannotBePaired) {
  std::vector<ModelRuns> models = {model("a", 1, 100, 1, 1), model("b", 1, 100, 1, 1)};
  EXPECT_THROW(recovery_table({}), Error);
  std::swap(models[1].runs[0][3], models[1].runs[0][4]);
  EXPECT_THROW(recovery_table(models), Error);
  models[1].runs[0].pop_back();
  EXPECT_THROW(thinking_rows(models), Error);
  models[1].runs.clear();
  EXPECT_THROW(recovery_table(models), Error);
}

TEST(Thinking, RowsFollowTheDefinitions) {
  const std::vector<ModelRuns> models = {model("exact", 0.9, 100, 3, 1), model("longer", 0.9, 104, 3, 2),
                                         model("same", 0.9, 100, 3, 3)};
  const auto rows = thinking_rows(models);
  double sum = 0, right = 0, right_tokens = 0;
  std::vector<double> differences;
  for (const auto& run : models[1].runs)
    for (const ItemResult& r : run) {
      sum += static_cast<double>(r.thinking_tokens);
      right += r.correct;
      right_tokens += r.correct ? static_cast<double>(r.thinking_tokens) : 0;
    }
  for (size_t i = 0; i < 400; ++i) {
    double d = 0;
    for (size_t s = 0; s < 3; ++s)
      d += static_cast<double>(models[1].runs[s][i].thinking_tokens - models[0].runs[s][i].thinking_tokens) / 3;
    differences.push_back(d);
  }
  EXPECT_EQ(rows[1].generations, 1200);
  EXPECT_NEAR(rows[1].mean, sum / 1200, 1e-9);
  EXPECT_NEAR(rows[1].mean_correct, right_tokens / right, 1e-9);
  EXPECT_NEAR(rows[1].other_tokens, 7, 1e-9);
  EXPECT_NEAR(rows[1].difference, mean(differences), 1e-9);
  EXPECT_NEAR(rows[1].d, cohens_d(differences), 1e-9);
  EXPECT_LT(rows[1].test.p, 1e-6);  // there are 4 tokens more on each of 400 questions, against a noise of 4
  EXPECT_GT(rows[2].test.p, 1e-6);
  EXPECT_GT(rows[1].joint, 100);  // .9^6 of 400
  EXPECT_GT(rows[1].joint_mean, rows[1].joint_reference);
  EXPECT_GT(rows[1].truncated, 0);
  EXPECT_EQ(rows[0].difference, 0);
  EXPECT_GT(rows[0].mean_cv, 0);

  const std::vector<std::string> words = {"words"}, none = {"none"};
  EXPECT_EQ(thinking_rows(models, words)[0].generations, 600);
  EXPECT_THROW(thinking_rows(models, none), Error);
  const auto tables = thinking_tables(rows);
  EXPECT_EQ(tables.size(), 7u);
  EXPECT_EQ(tables[0].rows.size(), 3u);
  EXPECT_EQ(tables[1].rows.size(), 2u);  // the reference has no row here
  EXPECT_EQ(to_json(rows[1])["joint"]["questions"], rows[1].joint);
}

TEST(NoiseStudy, FindsSlopeAndBreak) {
  NoiseStudy study{{"sums"}, {}};
  for (double kl : {0.002, 0.004, 0.008, 0.1, 1.0}) {
    const double recovery = kl < 0.01 ? 1 - 2 * kl : 0.5;
    const double half = kl < 0.005 ? 0.01 : 0.001;  // the interval reaches 1 up to a KL of .004
    study.points.push_back({kl, kl, {{recovery, {}}}, {recovery, {recovery - half, recovery + half}}});
  }
  EXPECT_NEAR(study.linear_fit().slope, 2, 1e-12);
  EXPECT_NEAR(study.linear_fit().r2, 1, 1e-12);
  EXPECT_EQ(study.lossless_up_to(), 0.004);
  EXPECT_EQ(to_chart(study).series.size(), 2u);
  study.linear_below = 0.001;
  EXPECT_TRUE(std::isnan(study.linear_fit().slope));
  EXPECT_TRUE(to_json(study)["alpha"].is_null());
}

}  // namespace
}  // namespace fidelio
