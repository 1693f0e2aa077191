// app: questions put to a model, as `eval --tasks`, `recovery` and `noise` share it.
#pragma once
#include "app/options/common.h"
#include "app/options/sampling.h"
#include "eval/tasks/tasks.h"

namespace fidelio::app {

struct Questions {
  std::string file{};
  std::vector<std::string> tasks{}, stops{};
  std::string shots_from{};
  int64_t shots = 0;
  int64_t limit = 0;  // of each task; 0 = all
  int64_t batch = 32;
  int64_t max_tokens = 320;
  bool plain = false;
};
// --tasks --task --limit --shots --shots-from --batch --max-tokens --stop --plain; the others need --tasks, which is
// returned.
CLI::Option* add_questions(CLI::App& verb, Questions& questions);
// The options that `verb` has got since it had `before` stand under "Questions" in its help and need --tasks.
void group_with_tasks(CLI::App& verb, const std::vector<CLI::Option*>& before, CLI::Option* tasks);

// The model's chat template; the bare text with --plain. Throws Error naming --plain if there is no template. Refers to
// `model`.
PromptBuilder prompts_of(const TextModel& model, bool plain);

// With the examples asked for. Throws Error naming a task that is not in the file and those that are.
TaskSet read_questions(const Questions& questions);

// A runner's options with room for the questions: `batch` answers side by side, each as long as it may become, with so
// many rows a step each (1 and what is drafted). Throws Error naming a question that does not fit into the context.
RunnerOptions answering(const RunnerOptions& options, const TextModel& model, const TaskSet& set,
                        const Questions& questions, int64_t rows_each = 1);

// What run_tasks needs to put the questions to the model; refers to `runner` and `model`. Choices are scored after the
// bare text, so that such a run needs no template.
TaskModel asked_with(Runner& runner, const TextModel& model, const TaskSet& set, const Questions& questions);

struct Answers {
  std::vector<ItemResult> results;  // in the order of the questions
  TaskOptions options;
  int64_t asked = 0;  // not found in the cache
  double seconds = 0;
};
// `cache` may be "". The cache file names everything the answers depend on: weights, formats, prompts, sampling, seed.
// `change` says how the runner's weights differ from the model's files; "" = not.
Answers answer_questions(Runner& runner, const TextModel& model, const TaskSet& set, const Questions& questions,
                         const SamplingOptions& sampling, const std::string& cache, const std::string& change = {},
                         const SpeculationOptions& speculation = {});

// Seeds seed, seed + 1, ... Throws Error if several are wanted of greedy answers, which are all the same.
std::vector<SamplingOptions> seeds_of(const SamplingOptions& sampling, int seeds);
// "answers.jsonl" -> "answers-seed3.jsonl" where answers are sampled; as it is where they are greedy.
std::string cache_of(const std::string& path, const SamplingOptions& sampling);
std::string text_of(const SamplingOptions& sampling);  // "greedy", "temperature 0.6, top-p 0.95, top-k 20"

}  // namespace fidelio::app
