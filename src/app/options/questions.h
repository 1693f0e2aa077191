// This file puts the questions of tasks to a model, for `eval --tasks`, `recovery` and `noise`.
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
  int64_t limit = 0;  // It bounds the questions of each task; 0 means all.
  int64_t batch = 32;
  int64_t max_tokens = 320;
  bool plain = false;
};
// Adds --tasks --task --limit --shots --shots-from --batch --max-tokens --stop --plain. Returns --tasks, which the
// others need.
CLI::Option* add_questions(CLI::App& verb, Questions& questions);
// Puts the options that `verb` has received since it had `before` under "Questions" in its help, and makes them need
// --tasks.
void group_with_tasks(CLI::App& verb, const std::vector<CLI::Option*>& before, CLI::Option* tasks);

// Returns the model's chat template, or the bare text with --plain. Throws Error naming --plain if there is no
// template. The result refers to `model`.
PromptBuilder prompts_of(const TextModel& model, bool plain);

// Reads the questions with the examples that were asked for. Throws Error naming a task that the file lacks and those
// that it has.
TaskSet read_questions(const Questions& questions);

// Returns a runner's options with room for the questions: `batch` answers side by side, each as long as it may become,
// with `rows_each` rows a step each (1 and the drafted ones). Throws Error naming a question that does not fit into the
// context.
RunnerOptions answering(const RunnerOptions& options, const TextModel& model, const TaskSet& set,
                        const Questions& questions, int64_t rows_each = 1);

// Returns what run_tasks needs to put the questions to the model; it refers to `runner` and `model`. Choices are scored
// after the bare text, so such a run needs no template.
TaskModel asked_with(Runner& runner, const TextModel& model, const TaskSet& set, const Questions& questions);

struct Answers {
  std::vector<ItemResult> results;  // They are in the order of the questions.
  TaskOptions options;
  int64_t asked = 0;  // It counts questions that were not found in the cache.
  double seconds = 0;
};
// Answers the questions. `cache` may be "". The cache file names everything that the answers depend on: weights,
// formats, prompts, sampling, seed. `change` says how the runner's weights differ from the model's files; "" means not
// at all.
Answers answer_questions(Runner& runner, const TextModel& model, const TaskSet& set, const Questions& questions,
                         const SamplingOptions& sampling, const std::string& cache, const std::string& change = {},
                         const SpeculationOptions& speculation = {});

// Returns the sampling with seeds seed, seed + 1, ... Throws Error if several are wanted for greedy answers, which are
// all the same.
std::vector<SamplingOptions> seeds_of(const SamplingOptions& sampling, int seeds);
// Returns "answers-seed3.jsonl" for "answers.jsonl" where answers are sampled, and the same path where they are greedy.
std::string cache_of(const std::string& path, const SamplingOptions& sampling);
// The result looks like "greedy" or "temperature 0.6, top-p 0.95, top-k 20".
std::string text_of(const SamplingOptions& sampling);

}  // namespace fidelio::app
