// This file is the verb `compare`, which shows where a model would choose another token than the model it is compared
// with.
#include <algorithm>

#include "app/about.h"
#include "app/options/prompts.h"
#include "app/options/questions.h"
#include "core/progress.h"
#include "eval/fidelity/divergence.h"
#include "eval/report/table.h"

namespace fidelio::app {
namespace {

struct Compare {
  RunOptions run;  // Its model is A.
  std::string other, prompts, page, csv, json;
  Questions questions{.batch = 16, .max_tokens = 512};
};

// Returns `limit` of them, spread evenly over the file, because files of questions are sorted by task.
std::vector<std::string> spread(const std::vector<std::string>& all, int64_t limit) {
  const auto size = static_cast<int64_t>(all.size());
  if (limit == 0 || limit >= size) return all;
  std::vector<std::string> some;
  for (int64_t i = 0; i < limit; ++i) some.push_back(all[static_cast<size_t>(i * size / limit)]);
  return some;
}

Table by_prompt(const DivergenceReport& r) {
  Table table{"Agreement by prompt", "", {"prompt", "tokens", "divergent", "agreement"}, {}};
  for (const PromptDivergence& p : r.prompts) {
    constexpr size_t kLongest = 56;
    size_t cut = std::min(p.prompt.find('\n'), std::min(p.prompt.size(), kLongest));
    while (cut > 0 && cut < p.prompt.size() && (static_cast<unsigned char>(p.prompt[cut]) & 0xC0) == 0x80) --cut;
    const auto tokens = static_cast<int64_t>(p.tokens.size());
    table.rows.push_back({p.prompt.substr(0, cut) + (cut < p.prompt.size() ? "…" : ""), fmt::format("{}", tokens),
                          fmt::format("{}", p.divergent()),
                          number_text(1 - static_cast<double>(p.divergent()) / static_cast<double>(tokens), 4)});
  }
  return table;
}

void compare(const Compare& o) {
  check_can_write({o.json, o.csv, o.page});
  const TextModel a = open_model(o.run.model), b = open_model(o.other);
  check(a.checkpoint.config().v == b.checkpoint.config().v,
        "{} has a vocabulary of {}, {} of {}: they cannot be compared", o.run.model, a.checkpoint.config().v, o.other,
        b.checkpoint.config().v);
  const std::vector<std::string> prompts = spread(read_prompt_lines(o.prompts), o.questions.limit);
  TaskSet set;
  set.path = o.prompts;
  for (const std::string& prompt : prompts) {
    check(a.tokenizer.encode(prompt) == b.tokenizer.encode(prompt),
          "{} and {} cut \"{}\" into different tokens: only models of one tokenizer can be compared", o.run.model,
          o.other, prompt.substr(0, 60));
    TaskItem item;
    item.task = "prompt";
    item.id = fmt::format("{}", set.items.size() + 1);
    item.question = prompt;
    set.items.push_back(item);
  }
  const RunnerOptions options = answering(runner_options(o.run), a, set, o.questions);
  const auto runner_a = make_runner(o.run, a.checkpoint, options), runner_b = make_runner(o.run, b.checkpoint, options);
  DivergenceOptions how;
  how.mode_a = how.mode_b = options.mode;
  how.max_tokens = o.questions.max_tokens;
  how.stop_ids = a.stop_ids;
  how.name_a = folder_name(o.run.model);
  how.name_b = folder_name(o.other);
  if (how.name_a == how.name_b) how.name_a += " (first)", how.name_b += " (second)";
  std::unique_ptr<Progress> progress;
  int64_t before = 0;
  const DivergenceReport report =
      measure_divergence(*runner_a, *runner_b, a.tokenizer, prompts_of(a, o.questions.plain), prompts, how,
                         [&](int64_t done, int64_t total) {
                           if (!progress) progress = std::make_unique<Progress>("compare", total);
                           progress->advance(done - std::exchange(before, done));
                         });
  progress.reset();
  if (!quiet(o.json)) {
    fmt::print("{}\n", to_text(by_prompt(report)));
    fmt::print("{} says what {} says at {} of {} tokens: agreement {} (95%, bootstrap by prompt)\n", o.other,
               o.run.model, report.tokens() - report.divergent(), report.tokens(),
               interval_text(report.agreement(), 4));
  }
  write_json(o.json, to_json(report, a.tokenizer));
  if (!o.csv.empty()) write_file_atomically(o.csv, to_csv(by_prompt(report)));
  if (!o.page.empty()) write_file_atomically(o.page, to_html(report, a.tokenizer, made_by()));
}

}  // namespace

void add_compare(CLI::App& app) {
  auto o = std::make_shared<Compare>();
  CLI::App* verb =
      app.add_subcommand("compare", "Where a model would say another token than the one it is compared with");
  verb->footer(
      "A answers every prompt greedily; its tokens are then forced through B.\n"
      "Example:\n  fidelio compare models/quill-26m quill-99 --prompts models/data/tasks.jsonl --limit 20 --report "
      "compare.html");
  verb->add_option("A", o->run.model, "Model folder that answers")->required()->check(model_folder());
  verb->add_option("B", o->other, "Model folder to compare with it; of the same tokenizer")
      ->required()
      ->check(model_folder());
  verb->add_option("--prompts", o->prompts,
                   "Prompts, one a line; of a .jsonl file the \"prompt\" or \"question\" of each line")
      ->required();
  verb->add_option("--limit", o->questions.limit, "Only this many prompts, spread evenly over the file")
      ->check(above_zero());
  verb->add_option("--max-tokens", o->questions.max_tokens, "Longest answer in tokens")->check(above_zero());
  verb->add_flag("--plain", o->questions.plain, "Give the bare prompt instead of A's chat template");
  add_report(*verb, o->page);
  verb->add_option("--csv", o->csv, "Write the table by prompt as CSV");
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { compare(*o); });
}

}  // namespace fidelio::app
