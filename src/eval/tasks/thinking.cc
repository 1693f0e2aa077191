// This file implements the part of studies/recovery.h that compares how many tokens models think.
#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/studies/recovery.h"

namespace fidelio {
namespace {

bool chosen(const ItemResult& r, std::span<const std::string> tasks) {
  return tasks.empty() || std::find(tasks.begin(), tasks.end(), r.task) != tasks.end();
}

// A Question collects what the runs of one model made of one question.
struct Question {
  std::vector<double> thinking;
  double mean = 0;
  bool always_right = true;
};

std::vector<Question> questions_of(const ModelRuns& model, std::span<const std::string> tasks) {
  std::vector<Question> questions;
  for (size_t i = 0; i < model.runs[0].size(); ++i) {
    if (!chosen(model.runs[0][i], tasks)) continue;
    Question q;
    for (const auto& run : model.runs) {
      q.thinking.push_back(static_cast<double>(run[i].thinking_tokens));
      q.always_right = q.always_right && run[i].correct;
    }
    q.mean = mean(q.thinking);
    questions.push_back(std::move(q));
  }
  return questions;
}

void add_aggregates(ThinkingRow& row, const ModelRuns& model, std::span<const std::string> tasks) {
  std::vector<double> all, right, wrong;
  double other = 0;
  for (const auto& run : model.runs)
    for (const ItemResult& r : run) {
      if (!chosen(r, tasks)) continue;
      all.push_back(static_cast<double>(r.thinking_tokens));
      (r.correct ? right : wrong).push_back(all.back());
      other += static_cast<double>(r.output_tokens - r.thinking_tokens);
      row.truncated += r.finish_reason != "stop";
    }
  row.generations = static_cast<int64_t>(all.size());
  row.mean = mean(all);
  row.median = percentile(all, 50);
  row.sd = standard_deviation(all);
  row.accuracy = static_cast<double>(right.size()) / static_cast<double>(all.size());
  row.mean_correct = mean(right);
  row.mean_wrong = mean(wrong);
  row.other_tokens = other / static_cast<double>(all.size());
  for (double p : kThinkingPercentiles) row.percentiles.push_back(percentile(all, p));
}

void compare_with(ThinkingRow& row, std::span<const Question> own, std::span<const Question> reference) {
  std::vector<double> differences, ratios, joint_own, joint_reference, joint_differences;
  for (size_t i = 0; i < own.size(); ++i) {
    differences.push_back(own[i].mean - reference[i].mean);
    if (reference[i].mean > 0) ratios.push_back(own[i].mean / reference[i].mean);
    if (!own[i].always_right || !reference[i].always_right) continue;
    joint_own.push_back(own[i].mean);
    joint_reference.push_back(reference[i].mean);
    joint_differences.push_back(differences.back());
  }
  row.difference = mean(differences);
  row.median_ratio = percentile(ratios, 50);
  row.d = cohens_d(differences);
  row.test = wilcoxon(differences);
  row.joint = static_cast<int64_t>(joint_own.size());
  row.joint_mean = mean(joint_own);
  row.joint_reference = mean(joint_reference);
  row.joint_test = wilcoxon(joint_differences);
}

}  // namespace

std::vector<ThinkingRow> thinking_rows(std::span<const ModelRuns> models, std::span<const std::string> tasks) {
  check_same_questions(models);
  std::vector<ThinkingRow> rows;
  const std::vector<Question> reference = questions_of(models[0], tasks);
  check(!reference.empty(), "no question belongs to the tasks asked for");
  for (const ModelRuns& model : models) {
    ThinkingRow row;
    row.name = model.name;
    row.bits = model.bits;
    add_aggregates(row, model, tasks);
    const std::vector<Question> own = questions_of(model, tasks);
    std::vector<std::vector<double>> runs;
    for (const Question& q : own) runs.push_back(q.thinking);
    const std::vector<double> cv = within_query_cv(runs);
    row.mean_cv = mean(cv);
    row.median_cv = percentile(cv, 50);
    if (&model != models.data()) compare_with(row, own, reference);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Table> thinking_tables(std::span<const ThinkingRow> rows) {
  Table aggregate{"Thinking tokens", "", {"model", "bits", "mean", "median", "sd", "accuracy", "truncated"}, {}};
  Table paired{"Against the reference, by question",
               "Means over seeds; Wilcoxon signed-rank, two-sided; Cohen's d of the paired differences.",
               {"model", "mean difference", "median ratio", "Wilcoxon p", "Cohen's d"},
               {}};
  Table joint{"Questions both answer right in every run",
              "",
              {"model", "questions", "reference", "model's", "difference", "Wilcoxon p"},
              {}};
  Table correctness{"By correctness", "", {"model", "right", "wrong", "wrong / right"}, {}};
  Table variation{"Within a question, over seeds", "", {"model", "mean CV", "median CV"}, {}};
  Table budget{"Where the tokens go", "", {"model", "thinking", "other", "total", "thinking share"}, {}};
  Table spread{"Percentiles", "", {"model"}, {}};
  for (double p : kThinkingPercentiles) spread.columns.push_back(fmt::format("P{:.0f}", p));
  for (const ThinkingRow& r : rows) {
    aggregate.rows.push_back({r.name, r.bits > 0 ? fmt::format("{:.2f}", r.bits) : "–", number_text(r.mean, 1),
                              number_text(r.median, 1), number_text(r.sd, 1), number_text(r.accuracy, 4),
                              fmt::format("{}", r.truncated)});
    correctness.rows.push_back({r.name, number_text(r.mean_correct, 1), number_text(r.mean_wrong, 1),
                                number_text(r.mean_wrong / r.mean_correct, 2)});
    variation.rows.push_back({r.name, number_text(r.mean_cv, 4), number_text(r.median_cv, 4)});
    const double total = r.mean + r.other_tokens;
    budget.rows.push_back({r.name, number_text(r.mean, 1), number_text(r.other_tokens, 1), number_text(total, 1),
                           number_text(r.mean / total, 3)});
    spread.rows.push_back({r.name});
    for (double p : r.percentiles) spread.rows.back().push_back(number_text(p, 0));
    if (&r == rows.data()) continue;
    paired.rows.push_back({r.name, fmt::format("{:+.2f}", r.difference), number_text(r.median_ratio, 3),
                           p_text(r.test.p), fmt::format("{:+.3f}", r.d)});
    joint.rows.push_back({r.name, fmt::format("{}", r.joint), number_text(r.joint_reference, 1),
                          number_text(r.joint_mean, 1),
                          r.joint > 0 ? fmt::format("{:+.2f}", r.joint_mean - r.joint_reference) : "–",
                          r.joint > 0 ? p_text(r.joint_test.p) : "–"});
  }
  return {aggregate, paired, joint, correctness, variation, budget, spread};
}

nlohmann::json to_json(const ThinkingRow& r) {
  const auto finite = [](double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(nullptr); };
  return {{"model", r.name},
          {"bits", r.bits},
          {"generations", r.generations},
          {"truncated", r.truncated},
          {"mean", finite(r.mean)},
          {"median", finite(r.median)},
          {"sd", finite(r.sd)},
          {"accuracy", finite(r.accuracy)},
          {"mean_correct", finite(r.mean_correct)},
          {"mean_wrong", finite(r.mean_wrong)},
          {"other_tokens", finite(r.other_tokens)},
          {"mean_cv", finite(r.mean_cv)},
          {"median_cv", finite(r.median_cv)},
          {"percentiles", r.percentiles},
          {"difference", finite(r.difference)},
          {"median_ratio", finite(r.median_ratio)},
          {"cohens_d", finite(r.d)},
          {"wilcoxon_p", r.test.p},
          {"joint",
           {{"questions", r.joint},
            {"reference", finite(r.joint_reference)},
            {"mean", finite(r.joint_mean)},
            {"wilcoxon_p", r.joint_test.p}}}};
}

}  // namespace fidelio
