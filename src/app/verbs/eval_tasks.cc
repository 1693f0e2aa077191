#include "app/verbs/eval_tasks.h"

#include "app/about.h"
#include "core/file.h"
#include "eval/report/html.h"
#include "eval/report/table.h"
#include "eval/studies/recovery.h"
#include "eval/studies/text_difference.h"

namespace fidelio::app {
namespace {

using nlohmann::json;

std::string share_text(int64_t part, int64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.4f}", static_cast<double>(part) / static_cast<double>(whole));
}

// Returns accuracies by task, as means over seeds, with Wilson's interval by question.
Table accuracy_table(const std::string& name, const std::vector<Answers>& runs, TaskMethod method) {
  const bool generated = method == TaskMethod::generate;
  Table table{name, "", {"task", "questions", "accuracy [95%]"}, {}};
  table.note = runs.size() == 1 ? "Wilson's intervals."
                                : fmt::format("Means over {} seeds, Wilson's intervals by question.", runs.size());
  const std::vector<std::string> more = generated ? std::vector<std::string>{"tokens", "thinking", "unfinished"}
                                                  : std::vector<std::string>{"normalised [95%]"};
  table.columns.insert(table.columns.end(), more.begin(), more.end());
  ModelRuns model{name, 0, {}};
  std::vector<ItemResult> all;
  for (const Answers& a : runs) {
    model.runs.push_back(a.results);
    all.insert(all.end(), a.results.begin(), a.results.end());
  }
  const RecoveryTable means = recovery_table(std::span(&model, 1));
  const auto summaries = summarise(all);
  const bool drafted = std::any_of(all.begin(), all.end(), [](const ItemResult& r) { return r.drafted > 0; });
  if (drafted) table.columns.insert(table.columns.end(), {"accepted", "of all drafted"});
  for (size_t i = 0; i < summaries.size(); ++i) {
    const TaskSummary& s = summaries[i];
    std::vector<std::string> row = {s.task, fmt::format("{}", s.items / static_cast<int64_t>(runs.size())),
                                    interval_text(runs.size() == 1 ? s.accuracy() : means.rows[0].accuracy[i])};
    if (generated) {
      const auto stopped = s.finish_reasons.find("stop");
      row.insert(row.end(), {number_text(s.output_tokens, 1), number_text(s.thinking_tokens, 1),
                             fmt::format("{}", s.items - (stopped == s.finish_reasons.end() ? 0 : stopped->second))});
    } else {
      row.push_back(interval_text(wilson(static_cast<double>(s.correct_normalised), s.items)));
    }
    if (drafted) row.insert(row.end(), {share_text(s.accepted, s.judged), share_text(s.accepted, s.drafted)});
    table.rows.push_back(std::move(row));
  }
  return table;
}

double output_tokens(const Answers& a) {
  double sum = 0;
  for (const ItemResult& r : a.results) sum += static_cast<double>(r.output_tokens);
  return sum;
}

json report_of(const Answers& a, const TaskSet& set) {
  json report = to_json(a.results, set, a.options);
  report["timings"] = {{"seconds", a.seconds}, {"questions_asked", a.asked}};
  // Answers from the cache took no time, so a rate would mean nothing.
  if (a.asked == static_cast<int64_t>(a.results.size()) && set.method == TaskMethod::generate)
    report["timings"]["tokens_per_second"] = output_tokens(a) / a.seconds;
  return report;
}

void print(const Answers& a, const TaskSet& set) {
  int64_t correct = 0;
  for (const ItemResult& r : a.results) correct += r.correct;
  const auto total = static_cast<int64_t>(a.results.size());
  std::string text = fmt::format("{}: accuracy {} over all {} questions", text_of(a.options.sampling),
                                 interval_text(wilson(static_cast<double>(correct), total)), total);
  if (a.options.sampling.temperature > 0) text = fmt::format("seed {}, {}", a.options.sampling.seed, text);
  if (a.asked < total) text += fmt::format("; {} from {}", total - a.asked, a.options.cache);
  text += fmt::format("; {:.1f} s", a.seconds);
  if (a.asked == total && set.method == TaskMethod::generate)
    text += fmt::format(", {:.0f} tokens/s", output_tokens(a) / a.seconds);
  fmt::print("{}\n", text);
  int64_t drafted = 0, judged = 0, accepted = 0;
  for (const ItemResult& r : a.results) drafted += r.drafted, judged += r.judged, accepted += r.accepted;
  if (drafted > 0)
    fmt::print("{} tokens drafted, {} behind accepted ones alone, {} accepted: {} of those, {} of all\n", drafted,
               judged, accepted, share_text(accepted, judged), share_text(accepted, drafted));
}

void print(const TextComparison& c, const Tokenizer& tokenizer, const std::string& reference) {
  fmt::print("the same text as {} for {} of {}: {}\n", reference,
             c.compared - static_cast<int64_t>(c.differences.size()), c.compared, interval_text(c.equal(), 4));
  if (!c.differences.empty()) fmt::print("{}", to_text(to_table(c, tokenizer, reference)));
}

}  // namespace

CLI::Option* add_eval_tasks(CLI::App& verb, EvalTasks& o) {
  CLI::Option* tasks = add_questions(verb, o.questions);
  const auto before = verb.get_options();
  add_sampling(verb, o.sampling);
  verb.add_option("--seeds", o.seeds, "How often each question is answered, with seeds --seed, --seed + 1, ...")
      ->check(CLI::Range(1, 1000));
  verb.add_option(
      "--cache", o.cache,
      "Keep the answers in this JSONL file and go on where it ends; sampled runs put their seed into its name");
  verb.add_option(
      "--against", o.against,
      "JSONL of another program's greedy answers (\"id\", \"text\"): say where ours differ, with the logits");
  verb.add_option("--csv", o.csv, "Write the table of accuracies as CSV");
  group_with_tasks(verb, before, tasks);
  return tasks;
}

void eval_tasks(const RunOptions& run, const EvalTasks& o, const DraftOptions& with, const std::string& json_path,
                const std::string& page) {
  check_can_write({o.csv});
  const TaskSet set = read_questions(o.questions);
  const TextModel model = open_model(run.model);
  const std::vector<SamplingOptions> samplings = seeds_of(sampling_of(o.sampling, run.model), o.seeds);
  for (const SamplingOptions& s : samplings) validate(s);
  std::map<std::string, std::string> others;
  if (!o.against.empty()) {
    check(samplings[0].temperature <= 0, "--against compares greedy answers; leave out sampling");
    others = read_answers(o.against);
  }
  const int64_t rows_each = with.draft == "off" ? 1 : 1 + with.most;
  RunnerOptions options = answering(runner_options(run), model, set, o.questions, rows_each);
  prepare_for_drafts(options, {&with.draft, 1}, run, model.checkpoint.config().v);
  const auto runner = make_runner(run, model.checkpoint, options);
  Draft draft = open_draft(with, *runner, run);
  draft.how.adapt = false;
  std::vector<Answers> runs;
  for (const SamplingOptions& s : samplings)
    runs.push_back(answer_questions(*runner, model, set, o.questions, s, cache_of(o.cache, s), {}, draft.how));
  const Table accuracies = accuracy_table(folder_name(run.model), runs, set.method);
  if (!quiet(json_path)) {
    fmt::print("{}", to_text(accuracies));
    for (const Answers& a : runs) print(a, set);
  }
  if (!page.empty())
    write_file_atomically(page, html_page(folder_name(run.model) + " on tasks", to_html(accuracies), made_by()));
  if (!o.csv.empty()) write_file_atomically(o.csv, to_csv(accuracies));
  json report = {
      {"model", run.model}, {"file", o.questions.file}, {"batch", o.questions.batch}, {"runs", json::array()}};
  if (with.draft != "off") report.update({{"draft", with.draft}, {"drafts", with.most}});
  for (const Answers& a : runs) report["runs"].push_back(report_of(a, set));
  if (!others.empty()) {
    const TextComparison comparison =
        compare_texts(asked_with(*runner, model, set, o.questions), set, runs[0].options, runs[0].results, others);
    if (!quiet(json_path)) print(comparison, model.tokenizer, o.against);
    report["against"] = to_json(comparison, model.tokenizer);
  }
  write_json(json_path, report);
}

}  // namespace fidelio::app
