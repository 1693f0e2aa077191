// Running questions through a model: generation in a pool (engine/generate.h) or log-likelihood of choices
// (logit_pass.h).
//
// Deterministic: an answer depends on the model, the prompt, the options and the run's seed, not on batching or order;
// a sampled answer's randomness is a function of (seed, question id, position). Each result is appended to the cache
// file as it comes, so an interrupted run goes on where it stopped.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/generate.h"
#include "eval/fidelity/logit_pass.h"
#include "eval/statistics/proportions.h"
#include "eval/statistics/statistics.h"
#include "eval/tasks/task_data.h"
#include "text/chat_template.h"

namespace fidelio {

// Token ids of a conversation that ends with the user's turn.
using PromptBuilder = std::function<std::vector<int32_t>(std::span<const ChatMessage>)>;
// The model's own template, with the opening of the assistant's turn.
PromptBuilder chat_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatOptions& options = {});
// Plain text: examples as "question answer\n\n", then the question. With the tokenizer's own special tokens (BOS).
PromptBuilder plain_prompt(const Tokenizer& tokenizer);

struct TaskOptions {
  Activations mode = Activations::a16;
  int64_t max_tokens = 320;
  int64_t max_sequences = 0;
  SamplingOptions sampling{};  // greedy by default; its seed is the run's
  std::vector<int32_t> stop_ids{};
  std::vector<std::string> stop_strings{};
  SpeculationOptions speculation{};  // changes no answer
  std::string cache{};               // JSONL of results; "" = none
  std::string model_identity{};      // e.g. the checkpoint's sha256: a cache made with another model is refused
};

struct ItemResult {
  std::string id, task;
  bool correct = false;
  // generate
  std::string text;
  int64_t prompt_tokens = 0, output_tokens = 0;
  int64_t thinking_tokens = 0;  // between <think> and </think>; all after <think> if it was never closed
  std::string finish_reason;
  int64_t drafted = 0, judged = 0, accepted = 0;  // with speculation; of answers from a cache 0
  // likelihood
  bool correct_normalised = false;  // by log-likelihood per character
  int chosen = -1;
  std::vector<double> log_likelihoods;
  std::vector<bool> greedy;  // whether greedy decoding would have said the choice
};

// What is put to the model: the examples of the question's task with their answers, then the question.
std::vector<ChatMessage> conversation(const TaskItem& item, std::span<const TaskItem> examples);
// The same as plain text, before choice number `choice` of a question scored by log-likelihood.
std::string choice_context(const TaskItem& item, size_t choice, std::span<const TaskItem> examples);

struct TaskModel {
  Runner* runner;
  const Tokenizer* tokenizer;
  PromptBuilder prompt;
};

// Results in the order of set.items. Throws Error if a prompt does not fit, or the cache was made with other settings.
std::vector<ItemResult> run_tasks(const TaskModel& model, const TaskSet& set, const TaskOptions& options,
                                  const ProgressCallback& progress = {});

// Thinking tokens of an output; open, close: ids of <think> and </think>.
int64_t count_thinking(std::span<const int32_t> ids, std::optional<int32_t> open, std::optional<int32_t> close);

// Log-likelihoods of a continuation after a context, as lm-evaluation-harness scores them: the whole is tokenised, what
// goes beyond the context's own tokens is the continuation; spaces at the end of the context go over to the
// continuation.
struct Continuation {
  std::string context, text;
};
struct ContinuationScore {
  double log_likelihood = 0;
  bool greedy = false;
  int64_t tokens = 0;
};
// A text whose end is scored: tokens ids[first_scored..].
struct AnsweredText {
  std::vector<int32_t> ids;
  int64_t first_scored = 1;
};
AnsweredText continued(const Tokenizer& tokenizer, const Continuation& continuation);
// The questions' own text: each prompt and the answer a model gave to it (where choices were scored, the one it chose),
// of which the answer is scored. Of each at most `longest` tokens; those without an answer within them are left out.
std::vector<AnsweredText> answered_texts(const TaskModel& model, const TaskSet& set,
                                         std::span<const ItemResult> results, int64_t longest);

std::vector<ContinuationScore> score_continuations(Runner& runner, const Tokenizer& tokenizer,
                                                   std::span<const Continuation> continuations, Activations mode,
                                                   const ProgressCallback& progress = {});

// By task: accuracy with Wilson's interval, tokens, reasons to end.
struct TaskSummary {
  std::string task;
  int64_t items = 0, correct = 0, correct_normalised = 0;
  double output_tokens = 0, thinking_tokens = 0;  // means
  int64_t drafted = 0, judged = 0, accepted = 0;
  std::map<std::string, int64_t> finish_reasons;
  Estimate accuracy() const { return wilson(static_cast<double>(correct), items); }
};
std::vector<TaskSummary> summarise(std::span<const ItemResult> results);  // in the order tasks first appear

// {tasks: [{task, items, accuracy, accuracy_normalised?, output_tokens, thinking_tokens, finish_reasons}], accuracy:
// over all items,
//  mean_accuracy: over tasks, settings}
nlohmann::json to_json(std::span<const ItemResult> results, const TaskSet& set, const TaskOptions& options);
nlohmann::json to_json(const ItemResult& result);
ItemResult parse_item_result(const nlohmann::json& json);

}  // namespace fidelio
