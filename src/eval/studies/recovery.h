// Studies over runs of tasks by several models: recovery (SLQ table 1), thinking tokens (tables 8 to 14), and accuracy
// against KL under injected noise (figure 8, Eq. 4). Pure functions of results; questions are paired by task and id.
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

// One model's results: a run for each seed (one run if greedy), every run over the same questions in the same order.
struct ModelRuns {
  std::string name;
  double bits = 0;  // a parameter, measured; 0 = not shown
  std::vector<std::vector<ItemResult>> runs;
};

// Throws Error if there is no model, a model has no results, or the questions are not the same everywhere.
void check_same_questions(std::span<const ModelRuns> models);

struct RecoveryOptions {
  double margin = 0.01;      // of accuracy: what "lossless within sampling variance" may lose (proportions.h, Verdict)
  double confidence = 0.95;  // of the intervals of recovery
};

struct RecoveryRow {
  std::string name;
  double bits = 0;
  std::vector<Estimate> accuracy;  // by task: mean over questions and seeds, Wilson's interval
  std::vector<Estimate> recovery;  // by task: accuracy over the reference's, paired by question
  Estimate mean_recovery{};        // over tasks, each weighing the same; NaN if the reference is never right
  Verdict verdict{};               // all questions together against the reference
};

struct RecoveryTable {
  std::vector<std::string> tasks;
  std::vector<RecoveryRow> rows;  // the reference first
  RecoveryOptions options;
};

// models[0] is the reference.
RecoveryTable recovery_table(std::span<const ModelRuns> models, const RecoveryOptions& options = {});
nlohmann::json to_json(const RecoveryTable& table);
Table to_table(const RecoveryTable& table);

// --- Thinking tokens.

struct ThinkingRow {
  std::string name;
  double bits = 0;
  // All generations.
  double mean = 0, median = 0, sd = 0, accuracy = 0;
  int64_t generations = 0, truncated = 0;  // truncated: ended by length or context
  std::vector<double> percentiles;         // of kThinkingPercentiles
  double mean_correct = 0, mean_wrong = 0;
  double other_tokens = 0;            // mean output outside the thinking
  double mean_cv = 0, median_cv = 0;  // within a question, over seeds; NaN with one seed
  // Against the reference, per-question means over seeds; the reference's own row is empty.
  double difference = 0, median_ratio = 0, d = 0;
  Wilcoxon test;
  // Questions that both answer right in every run.
  int64_t joint = 0;
  double joint_reference = 0, joint_mean = 0;
  Wilcoxon joint_test;
};
inline constexpr std::array<double, 7> kThinkingPercentiles = {10, 25, 50, 75, 90, 95, 99};

// models[0] is the reference. Only questions of `tasks`, or all if it is empty.
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
  double linear_below = 0.01;  // KL up to which the linear regime is fitted (the paper's claim)

  // 1 - recovery = alpha KL through the origin over points with 0 < KL <= linear_below; NaN slope if there is none.
  OriginFit linear_fit() const;
  // The largest KL such that there and at every smaller KL the interval of the mean recovery reaches 1; 0 if none does.
  double lossless_up_to() const;
};
Chart to_chart(const NoiseStudy& study);
nlohmann::json to_json(const NoiseStudy& study);

}  // namespace fidelio
