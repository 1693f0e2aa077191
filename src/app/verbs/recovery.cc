// This file is the verb `recovery`, which compares the accuracy of models on tasks with that of a reference.
#include <algorithm>
#include <cctype>
#include <filesystem>

#include "app/about.h"
#include "app/options/questions.h"
#include "core/file.h"
#include "eval/report/html.h"
#include "eval/report/table.h"
#include "eval/studies/recovery.h"

namespace fidelio::app {
namespace {

using nlohmann::json;

struct Recovery {
  RunOptions run;  // Its model is the reference.
  std::vector<std::string> models;
  Questions questions;
  int seeds = 3;
  uint64_t seed = 0;
  bool greedy = false;
  RecoveryOptions options;
  std::string cache, page, csv, json;
};

// Returns the last names of folders, or the full ones where two are alike.
std::vector<std::string> names_of(const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const std::string& f : folders) names.push_back(folder_name(f));
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() ? names : folders;
}

SamplingOptions sampling_for(const Recovery& o) {
  Sampling sampling;
  sampling.recommended = !o.greedy;
  SamplingOptions s = sampling_of(sampling, o.run.model);
  check(o.greedy || s.temperature > 0, "the generation_config.json of {} recommends no sampling; ask with --greedy",
        o.run.model);
  s.seed = o.seed;
  return s;
}

ModelRuns run_model(const Recovery& o, const std::string& folder, const std::string& name, const TaskSet& set,
                    const std::vector<SamplingOptions>& samplings) {
  const TextModel model = open_model(folder);
  const auto runner = make_runner(o.run, model.checkpoint, answering(runner_options(o.run), model, set, o.questions));
  ModelRuns runs{
      name,
      8.0 * static_cast<double>(model.checkpoint.file_bytes()) / static_cast<double>(model.checkpoint.parameters()),
      {}};
  std::string file = name + ".jsonl";
  std::replace(file.begin(), file.end(), '/', '_');
  for (const SamplingOptions& s : samplings)
    runs.runs.push_back(
        answer_questions(*runner, model, set, o.questions, s, o.cache.empty() ? "" : cache_of(o.cache + "/" + file, s))
            .results);
  return runs;
}

// Returns the tasks in which the reference thinks. An empty block still holds its line break, one token.
std::vector<std::string> thinking_tasks(const ModelRuns& reference) {
  std::vector<std::string> tasks;
  for (const TaskSummary& s : summarise(reference.runs[0]))
    if (s.thinking_tokens > 1) tasks.push_back(s.task);
  return tasks;
}

Table by_task(const RecoveryTable& recovery) {
  Table table{
      "Recovery by task", "Accuracy over the reference's, paired by question; 95% score intervals.", {"task"}, {}};
  for (const std::string& task : recovery.tasks) table.rows.push_back({task});
  for (size_t i = 1; i < recovery.rows.size(); ++i) {
    table.columns.push_back(recovery.rows[i].name);
    for (size_t t = 0; t < recovery.tasks.size(); ++t)
      table.rows[t].push_back(interval_text(recovery.rows[i].recovery[t]));
  }
  return table;
}

std::string sentence(const RecoveryRow& r, const std::string& reference) {
  const Verdict& v = r.verdict;
  std::string verdict = v.lossless ? fmt::format("lossless within sampling variance (margin {})", v.margin)
                                   : fmt::format("not shown to be lossless (margin {})", v.margin);
  if (v.too_few()) {
    verdict = fmt::format("{} questions are too few to tell (margin {})", v.questions, v.margin);
    if (v.needed > 0) verdict += fmt::format("; about {} needed", v.needed);
  }
  return fmt::format("{}: accuracy {:+.4f} [{:+.4f}, {:+.4f}] against {}: {}{}", r.name, v.difference.value,
                     v.difference.ci95.low, v.difference.ci95.high, reference, verdict,
                     v.different ? "; the difference is significant" : "");
}

struct Study {
  RecoveryTable recovery;
  std::vector<std::string> tasks;  // These are the tasks with thinking.
  std::vector<ThinkingRow> thinking;
  std::string how;  // It says questions, sampling and seeds.

  std::vector<Table> tables() const {
    std::vector<Table> all = {to_table(recovery)};
    if (recovery.rows.size() > 1) all.push_back(by_task(recovery));
    if (thinking.empty()) return all;
    for (Table& t : thinking_tables(thinking)) all.push_back(std::move(t));
    return all;
  }
};

std::string page(const Study& study) {
  const std::string& reference = study.recovery.rows[0].name;
  std::string body = "<p class=\"lead\">" + escape_html(study.how) + "</p>\n";
  const std::vector<Table> tables = study.tables();
  const size_t of_accuracy = tables.size() - (study.thinking.empty() ? 0 : thinking_tables(study.thinking).size());
  for (size_t i = 0; i < of_accuracy; ++i) body += to_html(tables[i]);
  body += "<ul>";
  for (size_t i = 1; i < study.recovery.rows.size(); ++i)
    body += "<li>" + escape_html(sentence(study.recovery.rows[i], reference)) + "</li>";
  body += "</ul>\n";
  Chart chart{.title = "Recovery against size",
              .x_label = "bits a parameter",
              .y_label = "recovery",
              .series = {{.name = "models", .points = {}, .line = false}}};
  chart.y_target = {1, "nothing lost"};
  for (const RecoveryRow& r : study.recovery.rows) {
    chart.series[0].points.push_back(
        {r.bits, r.mean_recovery.value, r.mean_recovery.ci95.low, r.mean_recovery.ci95.high, r.name});
  }
  if (study.recovery.rows.size() > 1) body += svg_chart(chart);
  if (!study.thinking.empty())
    body += "<h2>Thinking</h2>\n<p>Tasks in which " + escape_html(reference) +
            " thinks: " + escape_html(fmt::format("{}", fmt::join(study.tasks, ", "))) + ".</p>\n";
  for (size_t i = of_accuracy; i < tables.size(); ++i) body += to_html(tables[i]);
  return html_page("Recovery of " + reference, body, made_by());
}

// Writes one file for each table, named by its number and title.
void write_csv(const std::string& folder, const Study& study) {
  if (folder.empty()) return;
  std::filesystem::create_directories(folder);
  const std::vector<Table> tables = study.tables();
  for (size_t i = 0; i < tables.size(); ++i) {
    std::string name;
    for (char c : tables[i].title) {
      const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
      if (plain) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      if (!plain && !name.ends_with('-')) name += '-';
    }
    write_file_atomically(fmt::format("{}/{}-{}.csv", folder, i + 1, name), to_csv(tables[i]));
  }
}

void recovery(const Recovery& o) {
  const TaskSet set = read_questions(o.questions);
  const std::vector<SamplingOptions> samplings = seeds_of(sampling_for(o), o.greedy ? 1 : o.seeds);
  std::vector<std::string> folders = {o.run.model};
  folders.insert(folders.end(), o.models.begin(), o.models.end());
  // Models that cannot be opened are reported before the first one works for an hour.
  for (const std::string& folder : folders) Checkpoint::open(folder);
  check_can_write({o.json, o.page});
  if (!o.cache.empty()) std::filesystem::create_directories(o.cache);
  const std::vector<std::string> names = names_of(folders);
  std::vector<ModelRuns> models;
  for (size_t i = 0; i < folders.size(); ++i) models.push_back(run_model(o, folders[i], names[i], set, samplings));

  Study study{recovery_table(models, o.options), thinking_tasks(models[0]), {}, {}};
  if (!study.tasks.empty()) study.thinking = thinking_rows(models, study.tasks);
  study.how = fmt::format("{} questions of {}, {}, {} activations", set.items.size(), folder_name(o.questions.file),
                          o.greedy ? "greedy" : fmt::format("{}, {} seeds", text_of(samplings[0]), samplings.size()),
                          o.run.activations);
  if (!quiet(o.json)) {
    fmt::print("{}\n\n", study.how);
    for (const Table& t : study.tables()) fmt::print("{}\n", to_text(t));
    for (size_t i = 1; i < study.recovery.rows.size(); ++i)
      fmt::print("{}\n", sentence(study.recovery.rows[i], study.recovery.rows[0].name));
    if (study.thinking.empty()) fmt::print("{} thinks in none of these tasks.\n", names[0]);
  }
  json report = to_json(study.recovery);
  report.update({{"how", study.how},
                 {"file", o.questions.file},
                 {"file_sha256", set.sha256},
                 {"questions", set.items.size()},
                 {"folders", folders},
                 {"greedy", o.greedy},
                 {"seeds", samplings.size()},
                 {"thinking_tasks", study.tasks},
                 {"thinking", json::array()}});
  for (const ThinkingRow& row : study.thinking) report["thinking"].push_back(to_json(row));
  write_json(o.json, report);
  write_csv(o.csv, study);
  if (!o.page.empty()) write_file_atomically(o.page, page(study));
}

}  // namespace

void add_recovery(CLI::App& app) {
  auto o = std::make_shared<Recovery>();
  CLI::App* verb = app.add_subcommand(
      "recovery", "Accuracy of models on tasks against a reference's, with intervals and a verdict; thinking tokens");
  verb->footer(
      "Examples:\n  fidelio recovery models/quill-26m quill-99 quill-int4 --tasks models/data/tasks.jsonl --greedy "
      "--report recovery.html\n"
      "  fidelio recovery models/quill-26m quill-99 --tasks models/data/tasks.jsonl --seeds 3 --cache answers --json "
      "recovery.json");
  verb->add_option("REFERENCE", o->run.model, "Model folder that the others are measured against")
      ->required()
      ->check(model_folder());
  verb->add_option("MODEL", o->models, "Model folders to compare with it")->required()->check(model_folder());
  add_questions(*verb, o->questions)->required();
  verb->add_option("--seeds", o->seeds,
                   "How often each question is answered, sampled as the reference's generation_config.json recommends")
      ->check(CLI::Range(1, 1000));
  verb->add_option("--seed", o->seed, "The first seed; the others follow it");
  verb->add_flag("--greedy", o->greedy, "Answer greedily, once")->excludes("--seeds");
  verb->add_option("--margin", o->options.margin, "Accuracy that \"lossless within sampling variance\" may lose")
      ->check(from_to(0, 1));
  verb->add_option("--cache", o->cache, "Keep the answers in this folder and go on where they end");
  add_report(*verb, o->page);
  verb->add_option("--csv", o->csv, "Write the tables as CSV files into this folder");
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { recovery(*o); });
}

}  // namespace fidelio::app
