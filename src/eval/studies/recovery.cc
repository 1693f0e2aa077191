#include "eval/studies/recovery.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/statistics/statistics.h"

namespace fidelio {
namespace {

using nlohmann::json;

// Returns, for every question, the mean over runs of some number.
template <typename F>
std::vector<double> per_question(const ModelRuns& model, F number) {
  std::vector<double> means(model.runs[0].size());
  for (const auto& run : model.runs)
    for (size_t i = 0; i < run.size(); ++i)
      means[i] += static_cast<double>(number(run[i])) / static_cast<double>(model.runs.size());
  return means;
}

std::vector<double> scores_of(const ModelRuns& model) {
  return per_question(model, [](const ItemResult& r) { return r.correct; });
}

std::vector<std::string> tasks_of(const std::vector<ItemResult>& results) {
  std::vector<std::string> tasks;
  for (const TaskSummary& s : summarise(results)) tasks.push_back(s.task);
  return tasks;
}

std::vector<double> of_task(std::span<const double> values, const std::vector<ItemResult>& results,
                            const std::string& task) {
  std::vector<double> chosen;
  for (size_t i = 0; i < results.size(); ++i)
    if (results[i].task == task) chosen.push_back(values[i]);
  return chosen;
}

json numbers(std::span<const Estimate> estimates) {
  json all = json::array();
  for (const Estimate& e : estimates) all.push_back(to_json(e));
  return all;
}

json finite(double x) { return std::isfinite(x) ? json(x) : json(nullptr); }

}  // namespace

void check_same_questions(std::span<const ModelRuns> models) {
  check(!models.empty(), "a study needs at least the reference");
  for (const ModelRuns& m : models) {
    check(!m.runs.empty() && !m.runs[0].empty(), "{} has no results", m.name);
    for (const auto& run : m.runs) {
      const auto& first = models[0].runs[0];
      check(run.size() == first.size(), "{} answered {} questions, {} answered {}", m.name, run.size(), models[0].name,
            first.size());
      for (size_t i = 0; i < run.size(); ++i)
        check(run[i].task == first[i].task && run[i].id == first[i].id,
              "question {} is {} {} for {} and {} {} for {}: results must be of one file", i, run[i].task, run[i].id,
              m.name, first[i].task, first[i].id, models[0].name);
    }
  }
}

RecoveryTable recovery_table(std::span<const ModelRuns> models, const RecoveryOptions& options) {
  check_same_questions(models);
  const std::vector<ItemResult>& questions = models[0].runs[0];
  RecoveryTable table{tasks_of(questions), {}, options};
  const std::vector<double> reference = scores_of(models[0]);
  for (const ModelRuns& m : models) {
    const std::vector<double> scores = scores_of(m);
    RecoveryRow row;
    row.name = m.name;
    row.bits = m.bits;
    std::vector<std::vector<double>> by_task, reference_by_task;
    for (const std::string& task : table.tasks) {
      by_task.push_back(of_task(scores, questions, task));
      reference_by_task.push_back(of_task(reference, questions, task));
      row.accuracy.push_back(
          wilson(std::accumulate(by_task.back().begin(), by_task.back().end(), 0.0), std::ssize(by_task.back())));
      row.recovery.push_back(paired_ratio(paired_counts(by_task.back(), reference_by_task.back()), options.confidence));
    }
    std::vector<Estimate> kept = row.recovery;  // tasks where the reference is never right are left out
    std::erase_if(kept, [](const Estimate& e) { return !std::isfinite(e.value); });
    row.mean_recovery = kept.empty() ? Estimate{kNaN, {}} : mean_of_estimates(kept);
    row.verdict = compare_scores(scores, reference, options.margin);
    table.rows.push_back(std::move(row));
  }
  return table;
}

json to_json(const RecoveryTable& table) {
  json rows = json::array();
  for (const RecoveryRow& r : table.rows)
    rows.push_back({{"model", r.name},
                    {"bits", r.bits},
                    {"accuracy", numbers(r.accuracy)},
                    {"recovery", numbers(r.recovery)},
                    {"mean_recovery", to_json(r.mean_recovery)},
                    {"difference", to_json(r.verdict.difference)},
                    {"questions", r.verdict.questions},
                    {"questions_needed", r.verdict.needed},
                    {"lossless", r.verdict.lossless},
                    {"different", r.verdict.different}});
  return {{"tasks", table.tasks}, {"models", rows}, {"margin", table.options.margin}};
}

Table to_table(const RecoveryTable& table) {
  Table out{
      "Accuracy and recovery",
      fmt::format("Recovery: accuracy over the reference's, mean over tasks, with the 95% score interval of paired "
                  "questions. Lossless: the loss of accuracy over all questions is below {} with 97.5% "
                  "confidence; different: its interval excludes 0; ?: too few questions to tell.",
                  table.options.margin),
      {"model", "bits", "recovery [95%]", "lossless", "different"},
      {}};
  out.columns.insert(out.columns.end(), table.tasks.begin(), table.tasks.end());
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const RecoveryRow& r = table.rows[i];
    std::vector<std::string> cells = {r.name, r.bits > 0 ? fmt::format("{:.2f}", r.bits) : "–"};
    cells.push_back(i == 0 ? "1" : interval_text(r.mean_recovery));
    const bool unknown = r.verdict.too_few();
    cells.push_back(i == 0 ? "–" : r.verdict.lossless ? "yes" : unknown ? "?" : "no");
    cells.push_back(i == 0 ? "–" : r.verdict.different ? "yes" : unknown ? "?" : "no");
    for (const Estimate& e : r.accuracy) cells.push_back(number_text(e.value, 3));
    out.rows.push_back(std::move(cells));
  }
  return out;
}

OriginFit NoiseStudy::linear_fit() const {
  std::vector<double> kl, loss;
  for (const NoisePoint& p : points)
    if (p.kl > 0 && p.kl <= linear_below && std::isfinite(p.mean_recovery.value)) {
      kl.push_back(p.kl);
      loss.push_back(1 - p.mean_recovery.value);
    }
  return kl.empty() ? OriginFit{kNaN, kNaN} : fit_through_origin(kl, loss);
}

double NoiseStudy::lossless_up_to() const {
  std::vector<NoisePoint> sorted = points;
  std::sort(sorted.begin(), sorted.end(), [](const NoisePoint& a, const NoisePoint& b) { return a.kl < b.kl; });
  double up_to = 0;
  for (const NoisePoint& p : sorted) {
    if (p.mean_recovery.ci95.high < 1 || !std::isfinite(p.mean_recovery.value)) break;
    up_to = p.kl;
  }
  return up_to;
}

Chart to_chart(const NoiseStudy& study) {
  Chart chart{.title = "Recovery against KL under injected noise",
              .x_label = "KL to the unperturbed model (nats a token)",
              .y_label = "recovery",
              .log_x = true,
              .series = {}};
  chart.y_target = {1, "nothing lost"};
  for (size_t t = 0; t < study.tasks.size(); ++t) {
    ChartSeries series{.name = study.tasks[t], .points = {}, .faint = true};
    for (const NoisePoint& p : study.points) series.points.push_back({p.kl, p.recovery[t].value, 0, 0});
    chart.series.push_back(std::move(series));
  }
  ChartSeries mean{"mean over tasks", {}};
  for (const NoisePoint& p : study.points)
    mean.points.push_back({p.kl, p.mean_recovery.value, p.mean_recovery.ci95.low, p.mean_recovery.ci95.high});
  chart.series.push_back(std::move(mean));
  return chart;
}

json to_json(const NoiseStudy& study) {
  json points = json::array();
  for (const NoisePoint& p : study.points)
    points.push_back({{"level", p.level},
                      {"kl", p.kl},
                      {"recovery", numbers(p.recovery)},
                      {"mean_recovery", to_json(p.mean_recovery)}});
  const OriginFit fit = study.linear_fit();
  return {{"tasks", study.tasks},       {"points", points},     {"linear_below", study.linear_below},
          {"alpha", finite(fit.slope)}, {"r2", finite(fit.r2)}, {"lossless_up_to_kl", study.lossless_up_to()}};
}

}  // namespace fidelio
