#include "app/options/questions.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include "core/progress.h"
#include "runtime/page_table.h"

namespace fidelio::app {
namespace {

// Returns the longest sequence that a question can become. For log-likelihoods a token is at least a byte, and a few
// special ones are added.
int64_t longest(const TextModel& model, const TaskSet& set, const Questions& o) {
  constexpr size_t kSpecial = 8;
  const int64_t context = model.checkpoint.config().max_positions;
  int64_t most = 0;
  if (set.method == TaskMethod::generate) {
    const PromptBuilder prompt = prompts_of(model, o.plain);
    for (const TaskItem& item : set.items) {
      const auto size = static_cast<int64_t>(prompt(conversation(item, set.examples)).size());
      check(size < context,
            "{}: {} {} has {} tokens as a prompt, the context of {} holds {} and one must be left for the answer",
            set.path, item.task, item.id, size, model.checkpoint.folder(), context);
      most = std::max(most, size + o.max_tokens);
    }
  } else {
    for (const TaskItem& item : set.items) {
      for (size_t c = 0; c < item.choices.size(); ++c) {
        const size_t bytes = choice_context(item, c, set.examples).size() + 1 + item.choices[c].size();
        most = std::max(most, static_cast<int64_t>(bytes + kSpecial));
      }
    }
  }
  return std::min(most, context);
}

}  // namespace

PromptBuilder prompts_of(const TextModel& model, bool plain) {
  if (plain) return plain_prompt(model.tokenizer);
  check(model.chat.has_value(), "{} has no chat template ({}) to ask in; --plain asks with the bare question",
        model.checkpoint.folder(), chat_template_places(model.checkpoint.texts()));
  return chat_prompt(model.tokenizer, *model.chat);
}

CLI::Option* add_questions(CLI::App& verb, Questions& q) {
  CLI::Option* tasks = verb.add_option("--tasks", q.file,
                                       "File of questions with answers: fidelio's JSONL, or ARC, PIQA, WinoGrande, "
                                       "HellaSwag, BoolQ, OpenBookQA, GSM8K, MATH-500 as published");
  tasks->group("Questions");
  const auto before = verb.get_options();
  verb.add_option("--task", q.tasks, "Only this task of the file; may be repeated");
  verb.add_option("--limit", q.limit, "Only this many questions of each task, the first ones")->check(above_zero());
  CLI::Option* from = verb.add_option("--shots-from", q.shots_from,
                                      "File whose first questions are shown, answered, before those of their task");
  verb.add_option("--shots", q.shots, "So many of them")->check(above_zero())->needs(from);
  from->needs("--shots");
  verb.add_option("--batch", q.batch, "Answers generated side by side")->check(CLI::Range(1, 4096));
  verb.add_option("--max-tokens", q.max_tokens, "Longest answer in tokens")->check(above_zero());
  verb.add_option("--stop", q.stops, "An answer also ends at this text; may be repeated")->allow_extra_args(false);
  verb.add_flag("--plain", q.plain, "Ask with the bare question instead of the model's chat template");
  group_with_tasks(verb, before, tasks);
  return tasks;
}

void group_with_tasks(CLI::App& verb, const std::vector<CLI::Option*>& before, CLI::Option* tasks) {
  for (CLI::Option* option : verb.get_options())
    if (option != tasks && std::find(before.begin(), before.end(), option) == before.end())
      option->needs(tasks)->group("Questions");
}

TaskSet read_questions(const Questions& q) {
  TaskSet set = read_tasks(q.file);
  std::vector<std::string> known;
  for (const TaskItem& item : set.items)
    if (std::find(known.begin(), known.end(), item.task) == known.end()) known.push_back(item.task);
  for (const std::string& task : q.tasks)
    check(std::find(known.begin(), known.end(), task) != known.end(), "--task {}: {} has no such task; it has {}", task,
          q.file, fmt::join(known, ", "));
  std::map<std::string, int64_t> taken;
  std::erase_if(set.items, [&](const TaskItem& item) {
    if (!q.tasks.empty() && std::find(q.tasks.begin(), q.tasks.end(), item.task) == q.tasks.end()) return true;
    return q.limit > 0 && ++taken[item.task] > q.limit;
  });
  if (q.shots > 0) add_examples(set, read_tasks(q.shots_from), q.shots);
  return set;
}

RunnerOptions answering(const RunnerOptions& options, const TextModel& model, const TaskSet& set, const Questions& q,
                        int64_t rows_each) {
  RunnerOptions r = options;
  const int64_t room = PageTable::pages_for(longest(model, set, q)) * kPageTokens;
  const auto side_by_side =
      set.method == TaskMethod::generate ? std::min(q.batch, static_cast<int64_t>(set.items.size())) : 1;
  r.max_rows = std::max(r.max_rows, rows_each * side_by_side);
  r.max_logit_rows = std::max(r.max_logit_rows, rows_each * side_by_side);
  if (r.context > 0) r.context = std::max(r.context, room);
  // Log-likelihoods share a batch as far as its rows go; their last pages may be partly empty.
  r.cache_tokens =
      std::max({r.cache_tokens, side_by_side * room, set.method == TaskMethod::likelihood ? 2 * r.max_rows : 0});
  return r;
}

TaskModel asked_with(Runner& runner, const TextModel& model, const TaskSet& set, const Questions& q) {
  return {&runner, &model.tokenizer,
          set.method == TaskMethod::generate ? prompts_of(model, q.plain) : plain_prompt(model.tokenizer)};
}

Answers answer_questions(Runner& runner, const TextModel& model, const TaskSet& set, const Questions& q,
                         const SamplingOptions& sampling, const std::string& cache, const std::string& change,
                         const SpeculationOptions& speculation) {
  Answers answers;
  TaskOptions& o = answers.options;
  o.mode = runner.options().mode;
  o.max_tokens = q.max_tokens;
  o.max_sequences = q.batch;
  o.sampling = sampling;
  o.stop_ids = model.stop_ids;
  o.stop_strings = q.stops;
  o.speculation = speculation;
  o.cache = cache;
  o.model_identity =
      fmt::format("{}{}, cache {}, {}", model.checkpoint.sha256(), change.empty() ? "" : " with " + change,
                  name_of(runner.options().kv), q.plain ? "plain" : "chat template");
  set_words_on_interrupt(
      cache.empty() ? "Nothing is kept: --cache FILE keeps answers, so that the same command goes on with them."
                    : fmt::format("The answers so far are in {}; the same command goes on there.", cache));
  std::unique_ptr<Progress> progress;
  int64_t before = 0;
  const auto start = std::chrono::steady_clock::now();
  answers.results = run_tasks(asked_with(runner, model, set, q), set, o, [&](int64_t done, int64_t total) {
    if (!progress) {
      progress =
          std::make_unique<Progress>(std::filesystem::path(model.checkpoint.folder()).filename().string(), total);
      before = done - 1;
      answers.asked = total - before;
      if (before > 0) progress->advance(before);
    }
    progress->advance(done - std::exchange(before, done));
  });
  answers.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return answers;
}

std::vector<SamplingOptions> seeds_of(const SamplingOptions& sampling, int seeds) {
  check(sampling.temperature > 0 || seeds == 1,
        "--seeds {} of greedy answers: they are the same for every seed; sample with --temperature or --recommended",
        seeds);
  std::vector<SamplingOptions> all(static_cast<size_t>(seeds), sampling);
  for (size_t i = 0; i < all.size(); ++i) all[i].seed += i;
  return all;
}

std::string cache_of(const std::string& path, const SamplingOptions& sampling) {
  if (path.empty() || sampling.temperature <= 0) return path;
  const std::filesystem::path p(path);
  return (p.parent_path() / fmt::format("{}-seed{}{}", p.stem().string(), sampling.seed, p.extension().string()))
      .string();
}

std::string text_of(const SamplingOptions& s) {
  if (s.temperature <= 0) return "greedy";
  std::string text = fmt::format("temperature {}", s.temperature);
  if (s.top_p < 1) text += fmt::format(", top-p {}", s.top_p);
  if (s.top_k > 0) text += fmt::format(", top-k {}", s.top_k);
  if (s.min_p > 0) text += fmt::format(", min-p {}", s.min_p);
  return text;
}

}  // namespace fidelio::app
