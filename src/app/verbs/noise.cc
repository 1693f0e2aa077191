// This file is the verb `noise`, which measures what rising noise in the weights costs in fidelity and accuracy.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "app/about.h"
#include "app/options/questions.h"
#include "app/options/texts.h"
#include "core/file.h"
#include "core/progress.h"
#include "core/rng.h"
#include "eval/report/html.h"
#include "eval/report/table.h"
#include "eval/studies/compare.h"
#include "eval/studies/recovery.h"

namespace fidelio::app {
namespace {

using nlohmann::json;

struct Noise {
  RunOptions run;
  std::vector<std::string> texts;
  std::vector<double> levels = {0.01, 0.02, 0.04, 0.08, 0.16, 0.32};
  WindowOptions windows{.context = 0, .windows = 40};  // 0 means window_length().
  Questions questions;
  uint64_t seed = 0;
  double linear_below = 0.01;
  std::string cache, page, csv, json;
};

struct Level {
  double sigma;
  FidelityReport fidelity;
};

struct NoiseReport {
  std::string model;
  std::vector<Level> levels;
  NoiseStudy study;                             // It is empty without questions.
  std::vector<Estimate> base;                   // This is the accuracy by task without noise.
  std::vector<std::vector<Estimate>> accuracy;  // This is the accuracy of each level, by task.

  // Fits KL = alpha sigma^2 where KL is at most the study's limit. In this regime the contributions of matrices add up.
  OriginFit power_fit() const {
    std::vector<double> power, kl;
    for (const Level& l : levels)
      if (l.fidelity.kl().value <= study.linear_below) {
        power.push_back(l.sigma * l.sigma);
        kl.push_back(l.fidelity.kl().value);
      }
    return kl.empty() ? OriginFit{std::nan(""), std::nan("")} : fit_through_origin(power, kl);
  }
};

// Returns the linears of the layers; embedding and head stay as they are, as in the paper.
std::vector<LinearId> noisy_linears(const ModelConfig& config) {
  std::vector<LinearId> ids = linears_of(config);
  std::erase_if(ids, [](LinearId id) { return id.role == Role::embedding || id.role == Role::head; });
  return ids;
}

// Adds uniform noise (SLQ C.4). A matrix gets the same noise at every level except for its size, so the curve follows
// one direction and does not depend on luck.
void inject(Runner& runner, const Checkpoint& source, double sigma, uint64_t seed) {
  uint64_t number = 0;
  for (LinearId id : noisy_linears(source.config()))
    runner.set_linear(id, runner.pack_noisy(source.linear(id), sigma, Rng(seed, number++).next(), true));
}

void add_accuracy(NoiseReport& report, const std::vector<ModelRuns>& models) {
  const RecoveryTable table = recovery_table(models);
  report.study.tasks = table.tasks;
  report.base = table.rows[0].accuracy;
  for (size_t i = 1; i < table.rows.size(); ++i) {
    const RecoveryRow& row = table.rows[i];
    const Level& level = report.levels[i - 1];
    report.study.points.push_back({level.sigma, level.fidelity.kl().value, row.recovery, row.mean_recovery});
    report.accuracy.push_back(row.accuracy);
  }
}

NoiseReport measure(const Noise& o) {
  const TextModel model = open_model(o.run.model);
  RunnerOptions options = runner_options(o.run);
  WindowOptions windows = o.windows;
  windows.context = window_length("--context", windows.context, model.checkpoint.config());
  options.max_rows = std::max<int64_t>(options.max_rows, windows.context);
  options.cache_tokens = 2 * options.max_rows;
  options.context = windows.context;
  const std::vector<EvalText> texts = read_texts(o.texts, model.tokenizer);
  const auto exact = make_runner(o.run, model.checkpoint, options);
  std::optional<TaskSet> set;
  if (!o.questions.file.empty()) set = read_questions(o.questions);
  const auto noisy = make_runner(o.run, model.checkpoint, set ? answering(options, model, *set, o.questions) : options);
  ThreadPool pool(o.run.threads);

  NoiseReport report;
  report.model = o.run.model;
  report.study.linear_below = o.linear_below;
  std::vector<ModelRuns> models;
  const auto answer = [&](const std::string& name, const std::string& change) {
    if (!set) return;
    if (!o.cache.empty()) std::filesystem::create_directories(o.cache);
    const std::string file = o.cache.empty() ? "" : o.cache + "/" + name + ".jsonl";
    models.push_back({name, 0, {answer_questions(*noisy, model, *set, o.questions, {}, file, change).results}});
  };
  answer("without", "");
  KeptStreams kept;
  Progress progress("noise", static_cast<int64_t>(o.levels.size()));
  for (double sigma : o.levels) {
    inject(*noisy, model.checkpoint, sigma, o.seed);
    report.levels.push_back({sigma, compare_models(*exact, *noisy, texts,
                                                   {.windows = windows,
                                                    .reference_mode = options.mode,
                                                    .candidate_mode = options.mode,
                                                    .top_k = 10,
                                                    .bootstrap = {}},
                                                   pool, {}, &kept)});
    answer(fmt::format("noise-{}", sigma), fmt::format("uniform noise {} seed {}", sigma, o.seed));
    progress.advance();
  }
  if (set) add_accuracy(report, models);
  return report;
}

Table level_table(const NoiseReport& r) {
  Table table{
      "Noise and what it costs",
      "Noise: uniform, relative to each matrix's root mean square. 95% bootstrap intervals, by window and by question.",
      {"noise", "KL, nats a token", "EAR", "perplexity"},
      {}};
  const bool asked = !r.study.points.empty();
  if (asked) {
    table.columns.push_back("recovery [95%]");
    table.rows.push_back({"0", "0", "1", number_text(r.levels[0].fidelity.reference_perplexity().value, 4), "1"});
    for (const Estimate& e : r.base) table.rows.back().push_back(number_text(e.value, 3));
  }
  table.columns.insert(table.columns.end(), r.study.tasks.begin(), r.study.tasks.end());
  for (size_t i = 0; i < r.levels.size(); ++i) {
    const FidelityReport& f = r.levels[i].fidelity;
    table.rows.push_back({fmt::format("{}", r.levels[i].sigma), interval_text(f.kl(), 6), interval_text(f.ear(), 4),
                          number_text(f.perplexity().value, 4)});
    if (!asked) continue;
    table.rows.back().push_back(interval_text(r.study.points[i].mean_recovery));
    for (const Estimate& e : r.accuracy[i]) table.rows.back().push_back(number_text(e.value, 3));
  }
  return table;
}

// Describes `what` by a line fitted through the origin, or says that no level had so small a KL.
std::string fit_text(const OriginFit& fit, const char* what, const char* of, double below) {
  if (!std::isfinite(fit.slope)) return fmt::format("{}: no level has KL <= {}, so no line is fitted", what, below);
  return fmt::format("{} = {:.4g} {} where KL <= {} (R2 {})", what, fit.slope, of, below, number_text(fit.r2, 4));
}

std::vector<std::string> findings(const NoiseReport& r) {
  std::vector<std::string> lines = {fit_text(r.power_fit(), "KL", "noise^2", r.study.linear_below)};
  if (r.study.points.empty()) return lines;
  const auto measured = [](const NoisePoint& point) { return std::isfinite(point.mean_recovery.value); };
  if (std::none_of(r.study.points.begin(), r.study.points.end(), measured)) {
    lines.push_back("without noise no task has a right answer: there is no recovery to measure");
    return lines;
  }
  lines.push_back(fit_text(r.study.linear_fit(), "1 - recovery", "KL", r.study.linear_below));
  lines.push_back(fmt::format("recovery cannot be told from 1 up to KL {:.4g}", r.study.lossless_up_to()));
  return lines;
}

json report_of(const NoiseReport& r, const Noise& o) {
  const auto finite = [](double x) { return std::isfinite(x) ? json(x) : json(nullptr); };
  const OriginFit power = r.power_fit();
  json levels = json::array();
  for (size_t i = 0; i < r.levels.size(); ++i) {
    const FidelityReport& f = r.levels[i].fidelity;
    levels.push_back({{"noise", r.levels[i].sigma},
                      {"kl", to_json(f.kl())},
                      {"ear", to_json(f.ear())},
                      {"perplexity", to_json(f.perplexity())},
                      {"tokens", f.positions()}});
    if (r.accuracy.empty()) continue;
    for (const Estimate& e : r.accuracy[i]) levels.back()["accuracy"].push_back(to_json(e));
  }
  json report = {{"model", r.model},
                 {"texts", o.texts},
                 {"activations", o.run.activations},
                 {"seed", o.seed},
                 {"levels", levels},
                 {"reference_perplexity", to_json(r.levels[0].fidelity.reference_perplexity())},
                 {"kl_by_noise_power",
                  {{"slope", finite(power.slope)}, {"r2", finite(power.r2)}, {"below", r.study.linear_below}}}};
  if (r.study.points.empty()) return report;
  for (const Estimate& e : r.base) report["accuracy_without_noise"].push_back(to_json(e));
  report["recovery"] = to_json(r.study);
  return report;
}

// On logarithmic axes KL = alpha noise^2 is a line of slope two. Where points leave it, contributions no longer add up.
Chart noise_chart(const NoiseReport& r) {
  Chart chart{.title = "KL against noise",
              .x_label = "noise relative to the root mean square",
              .y_label = "KL, nats a token",
              .log_x = true,
              .log_y = true,
              .series = {{"measured", {}}}};
  for (const Level& l : r.levels) {
    const Estimate kl = l.fidelity.kl();
    chart.series[0].points.push_back({l.sigma, kl.value, kl.ci95.low, kl.ci95.high});
  }
  const OriginFit fit = r.power_fit();
  if (!std::isfinite(fit.slope) || fit.slope <= 0) return chart;
  ChartSeries line{.name = fmt::format("fit: {:.4g} noise²", fit.slope), .points = {}, .marks = false};
  for (const Level& l : r.levels) line.points.push_back({l.sigma, fit.slope * l.sigma * l.sigma});
  chart.series.push_back(std::move(line));
  chart.y_target = {r.study.linear_below, fmt::format("fitted up to {}", r.study.linear_below)};
  return chart;
}

std::string page(const NoiseReport& r) {
  std::string body = "<p class=\"lead\">Uniform noise in every weight matrix of the layers of " +
                     escape_html(folder_name(r.model)) + ".</p>\n<ul>";
  for (const std::string& line : findings(r)) body += "<li>" + escape_html(line) + "</li>";
  body += "</ul>\n";
  body += svg_chart(noise_chart(r));
  if (!r.study.points.empty()) body += svg_chart(to_chart(r.study));
  return html_page("Noise in " + folder_name(r.model), body + to_html(level_table(r)), made_by());
}

void noise(const Noise& o) {
  check_can_write({o.json, o.csv, o.page});
  const NoiseReport report = measure(o);
  if (!quiet(o.json)) {
    fmt::print("{}", to_text(level_table(report)));
    for (const std::string& line : findings(report)) fmt::print("{}\n", line);
  }
  write_json(o.json, report_of(report, o));
  if (!o.csv.empty()) write_file_atomically(o.csv, to_csv(level_table(report)));
  if (!o.page.empty()) write_file_atomically(o.page, page(report));
}

}  // namespace

void add_noise(CLI::App& app) {
  auto o = std::make_shared<Noise>();
  o->run.activations = "f32";
  CLI::App* verb =
      app.add_subcommand("noise", "What noise in the weights costs: KL, and accuracy on tasks, at rising levels");
  verb->footer(
      "Examples:\n  fidelio noise models/quill-26m --text models/data/docs-heldout.txt\n"
      "  fidelio noise models/quill-26m --text models/data/docs-heldout.txt --tasks models/data/tasks.jsonl --limit 60 "
      "--report noise.html");
  add_model(*verb, o->run);
  verb->add_option("--text", o->texts, "Text on which KL is measured; may be repeated")->required();
  verb->add_option("--levels", o->levels,
                   "Noise relative to each matrix's root mean square (default: 0.01 to 0.32, doubling)")
      ->delimiter(',')
      ->check(above_zero());
  verb->add_option("--context", o->windows.context,
                   "Window length in tokens (default: 512, or the model's context if that is shorter)")
      ->check(CLI::Range(2, 1 << 24));
  verb->add_option("--windows", o->windows.windows, "Only this many windows of each text, the first ones; 0 = all")
      ->check(zero_or_more());
  verb->add_option("--seed", o->seed, "Of the noise");
  verb->add_option("--linear-below", o->linear_below, "KL up to which lines are fitted")->check(above_zero());
  CLI::Option* tasks = add_questions(*verb, o->questions);
  const auto before = verb->get_options();
  verb->add_option("--cache", o->cache, "Keep the answers in this folder and go on where they end");
  group_with_tasks(*verb, before, tasks);
  add_report(*verb, o->page);
  verb->add_option("--csv", o->csv, "Write the table as CSV");
  add_device(*verb, o->run);
  verb->add_option("--activations", o->run.activations,
                   "Precision of activations: f32 (the default: rounding would hide small noise), a16, a8");
  add_json(*verb, o->json);
  verb->callback([o] { noise(*o); });
}

}  // namespace fidelio::app
