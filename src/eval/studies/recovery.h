// This file has studies over runs of tasks by several models: recovery (SLQ table 1), thinking tokens (tables 8 to
// 14), and accuracy against KL under injected noise (figure 8, equation 4). They are pure functions of results.
// Questions are paired by task and id.
#pragma once
#include <array>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "eval/report/html.h"
#include "eval/report/table.h"
#include "eval/statistics/proportions.h"
#include "eval/tasks/tasks.h"

namespace fidelio {

// ModelRuns holds one model's results: one run for each seed (a single run if greedy), each over the same questions
// in the same order.
struct ModelRuns {
  std::string name;
  double bits = 0;  // measured bits per parameter; 0 hides it
  std::vector<std::vector<ItemResult>> runs;
};

// Throws Error if there is no model, a model has no results, or the questions are not the same everywhere.
void check_same_questions(std::span<const ModelRuns> models);

struct RecoveryOptions {
  // The loss of accuracy that "lossless within sampling variance" allows (proportions.h, Verdict).
  double margin = 0.01;
  double confidence = 0.95;  // confidence of the intervals of recovery
};

struct RecoveryRow {
  std::string name;
  double bits = 0;
  std::vector<Estimate> accuracy;  // for each task the mean over questions and seeds, with Wilson's interval
  std::vector<Estimate> recovery;  // for each task the accuracy divided by the reference's, paired by question
  Estimate mean_recovery{};        // mean over tasks with equal weights; NaN if the reference is never right
  Verdict verdict{};               // all questions together, compared with the reference
};

struct RecoveryTable {
  std::vector<std::string> tasks;
  std::vector<RecoveryRow> rows;  // the reference comes first
  RecoveryOptions options;
};

// Compares the models with models[0], the reference.
RecoveryTable recovery_table(std::span<const ModelRuns> models, const RecoveryOptions& options = {});
nlohmann::json to_json(const RecoveryTable& table);
Table to_table(const RecoveryTable& table);

// --- Thinking tokens.

struct ThinkingRow {
  std::string name;
  double bits = 0;
  // These figures are over all generations.
  double mean = 0, median = 0, sd = 0, accuracy = 0;
  int64_t generations = 0, truncated = 0;  // `truncated` counts those ended by the length or the context
  std::vector<double> percentiles;         // one for each of kThinkingPercentiles
  double mean_correct = 0, mean_wrong = 0;
  double other_tokens = 0;            // mean number of output tokens outside the thinking
  double mean_cv = 0, median_cv = 0;  // coefficient of variation within a question, over seeds; NaN with one seed
  // These figures compare with the reference, by per-question means over seeds. The reference's own row leaves them
  // empty.
  double difference = 0, median_ratio = 0, d = 0;
  Wilcoxon test;
  // These figures are over the questions that both models answer right in every run.
  int64_t joint = 0;
  double joint_reference = 0, joint_mean = 0;
  Wilcoxon joint_test;
};
inline constexpr std::array<double, 7> kThinkingPercentiles = {10, 25, 50, 75, 90, 95, 99};

// Returns one row for each model, of which models[0] is the reference. Only questions of `tasks` count, or all if it
// is empty.
std::vector<ThinkingRow> thinking_rows(std::span<const ModelRuns> models, std::span<const std::string> tasks = {});
std::vector<Table> thinking_tables(std::span<const ThinkingRow> rows);  // laid out as tables 8 to 14
nlohmann::json to_json(const ThinkingRow& row);

// --- Accuracy against KL.

struct NoisePoint {
  double level = 0, kl = 0;        // noise relative to each matrix's standard deviation; KL to the unperturbed model
  std::vector<Estimate> recovery;  // by task
  Estimate mean_recovery{};
};

struct NoiseStudy {
  std::vector<std::string> tasks;
  std::vector<NoisePoint> points;
  double linear_below = 0.01;  // largest KL of the fitted linear regime (the paper's claim)

  // Fits 1 - recovery = alpha KL through the origin over points with 0 < KL <= linear_below. The slope is NaN if
  // there are no such points.
  OriginFit linear_fit() const;
  // Returns the largest KL such that there, and at every smaller KL, the interval of the mean recovery reaches 1. It
  // is 0 if there is none.
  double lossless_up_to() const;
};
Chart to_chart(const NoiseStudy& study);
nlohmann::json to_json(const NoiseStudy& study);

}  // namespace fidelio
