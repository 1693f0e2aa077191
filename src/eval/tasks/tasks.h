// This file runs questions through a model, either by generating answers in a pool (engine/generate.h) or by scoring
// the log-likelihood of choices (eval/fidelity/logit_pass.h).
//
// A run is deterministic. An answer depends on the model, the prompt, the options and the run's seed, and not on
// batching or order: the random numbers of a sampled answer are a function of (seed, question id, position). Each
// result is appended to the cache file at once, so that an interrupted run goes on where it stopped.
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

// A PromptBuilder returns the token ids of a conversation that ends with the user's message.
using PromptBuilder = std::function<std::vector<int32_t>(std::span<const ChatMessage>)>;
// Builds prompts with the model's own chat template, up to the opening of the assistant's message.
PromptBuilder chat_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatOptions& options = {});
// Builds plain text: each example as "question answer\n\n", then the question. The tokenizer adds its own special
// tokens (BOS).
PromptBuilder plain_prompt(const Tokenizer& tokenizer);

struct TaskOptions {
  Activations mode = Activations::a16;
  int64_t max_tokens = 320;
  int64_t max_sequences = 0;
  SamplingOptions sampling{};  // greedy by default; its seed is the run's seed
  std::vector<int32_t> stop_ids{};
  std::vector<std::string> stop_strings{};
  SpeculationOptions speculation{};  // speculation changes no answer
  std::string cache{};               // path of a JSONL file of results; "" keeps none
  // This identifies the model, for example by the checkpoint's SHA-256. A cache made with another model is refused.
  std::string model_identity{};
};

struct ItemResult {
  std::string id, task;
  bool correct = false;
  // These fields belong to generated answers.
  std::string text;
  int64_t prompt_tokens = 0, output_tokens = 0;
  // The tokens between the thinking marks, or all tokens after the opening mark if it was never closed.
  int64_t thinking_tokens = 0;
  std::string finish_reason;
  // Counts of speculation: drafted tokens, those verified, and those accepted. They are 0 for answers from a cache.
  int64_t drafted = 0, judged = 0, accepted = 0;
  // These fields belong to choices scored by log-likelihood.
  bool correct_normalised = false;  // whether the choice with the highest log-likelihood per character is right
  int chosen = -1;
  std::vector<double> log_likelihoods;
  std::vector<bool> greedy;  // for each choice, whether greedy decoding would have produced it
};

// Returns the conversation put to the model: the examples with their answers, then the question.
std::vector<ChatMessage> conversation(const TaskItem& item, std::span<const TaskItem> examples);
// Returns the same as plain text, for choice number `choice` of a question scored by log-likelihood.
std::string choice_context(const TaskItem& item, size_t choice, std::span<const TaskItem> examples);

struct TaskModel {
  Runner* runner;
  const Tokenizer* tokenizer;
  PromptBuilder prompt;
};

// Runs all questions. The results are in the order of set.items. Throws Error if a prompt does not fit, or if the
// cache was made with other settings.
std::vector<ItemResult> run_tasks(const TaskModel& model, const TaskSet& set, const TaskOptions& options,
                                  const ProgressCallback& progress = {});

// Counts the thinking tokens of an output. `open` and `close` are the ids of the thinking marks.
int64_t count_thinking(std::span<const int32_t> ids, std::optional<int32_t> open, std::optional<int32_t> close);

// A Continuation is scored as lm-evaluation-harness does it: the whole text is tokenised, and the tokens beyond the
// context's own are the continuation. Spaces at the end of the context are moved to the continuation.
struct Continuation {
  std::string context, text;
};
struct ContinuationScore {
  double log_likelihood = 0;
  bool greedy = false;
  int64_t tokens = 0;
};
// An AnsweredText is a text whose end is scored, namely the tokens from ids[first_scored] on.
struct AnsweredText {
  std::vector<int32_t> ids;
  int64_t first_scored = 1;
};
// Tokenises a continuation with its context. Throws Error if no token is left to score.
AnsweredText continued(const Tokenizer& tokenizer, const Continuation& continuation);
// Returns the questions' own text: each prompt with the answer that a model gave (or with the choice it picked), of
// which the answer is scored. Each text is cut to `longest` tokens; texts without any answer token within that length
// are left out.
std::vector<AnsweredText> answered_texts(const TaskModel& model, const TaskSet& set,
                                         std::span<const ItemResult> results, int64_t longest);

// Returns the log-likelihood of each continuation, in order.
std::vector<ContinuationScore> score_continuations(Runner& runner, const Tokenizer& tokenizer,
                                                   std::span<const Continuation> continuations, Activations mode,
                                                   const ProgressCallback& progress = {});

// A TaskSummary holds the figures of one task: accuracy with Wilson's interval, mean token counts, and reasons to
// end.
struct TaskSummary {
  std::string task;
  int64_t items = 0, correct = 0, correct_normalised = 0;
  double output_tokens = 0, thinking_tokens = 0;  // means over the items
  int64_t drafted = 0, judged = 0, accepted = 0;
  std::map<std::string, int64_t> finish_reasons;
  Estimate accuracy() const { return wilson(static_cast<double>(correct), items); }
};
// Returns one summary for each task, in the order in which tasks first appear.
std::vector<TaskSummary> summarise(std::span<const ItemResult> results);

// The JSON has the form {tasks: [{task, items, accuracy, accuracy_normalised?, output_tokens, thinking_tokens,
// finish_reasons}], accuracy, mean_accuracy, settings}. Here `accuracy` is over all items and `mean_accuracy` is the
// mean over tasks.
nlohmann::json to_json(std::span<const ItemResult> results, const TaskSet& set, const TaskOptions& options);
nlohmann::json to_json(const ItemResult& result);
ItemResult parse_item_result(const nlohmann::json& json);

}  // namespace fidelio
