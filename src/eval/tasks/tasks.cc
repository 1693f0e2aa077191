#include "eval/tasks/tasks.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/hash.h"
#include "core/rng.h"
#include "eval/fidelity/fidelity.h"
#include "eval/tasks/task_cache.h"
#include "eval/tasks/task_score.h"
#include "text/thinking.h"

namespace fidelio {
namespace {

using nlohmann::json;

// Derives a seed from the run's seed and a hash (FNV-1a) of the question's id, so that no two questions share random
// numbers.
uint64_t seed_of(uint64_t seed, const TaskItem& item) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : item.task + "/" + item.id) hash = (hash ^ c) * 0x100000001b3u;
  return Rng(seed, hash).next();
}

std::string key_of(const TaskItem& item) { return item.task + "/" + item.id; }

// Counts the characters (code points) of UTF-8 text; the harness's acc_norm divides by this number.
double characters(const std::string& text) {
  return static_cast<double>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string shown_answer(const TaskItem& example) {
  return example.worked_answer.empty() ? example.answer : example.worked_answer;
}

// Returns the text before a choice.
std::string question_text(const TaskItem& item, size_t choice) {
  return item.contexts.empty() ? item.question : item.contexts[choice];
}

json settings_json(const TaskSet& set, const TaskOptions& o) {
  json examples = json::array();
  for (const TaskItem& e : set.examples)
    examples.push_back(key_of(e) + " " + sha256_hex(e.question + "\n" + shown_answer(e)).substr(0, 16));
  const SamplingOptions& s = o.sampling;
  return {{"model", o.model_identity},
          {"tasks", set.sha256},
          {"activations", name_of(o.mode)},
          {"method", set.method == TaskMethod::generate ? "generate" : "likelihood"},
          {"match", static_cast<int>(set.match)},
          {"pattern", set.pattern},
          {"max_tokens", o.max_tokens},
          {"stop_ids", o.stop_ids},
          {"stop_strings", o.stop_strings},
          {"examples", examples},
          {"temperature", s.temperature},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"repetition_penalty", s.repetition_penalty},
          {"presence_penalty", s.presence_penalty},
          {"frequency_penalty", s.frequency_penalty},
          {"seed", s.seed}};
}

// A Run holds what one run shares: its results, where they are kept, and how progress is reported.
struct Run {
  const TaskSet& set;
  const TaskOptions& options;
  std::optional<TaskCache> cache;
  std::vector<ItemResult> results;
  std::vector<size_t> missing;  // indices of the items that the cache does not have
  ProgressCallback progress;
  int64_t done = 0;

  Run(const TaskSet& set, const TaskOptions& options, const ProgressCallback& progress)
      : set(set), options(options), results(set.items.size()), progress(progress) {
    if (!options.cache.empty()) cache.emplace(options.cache, settings_json(set, options));
    for (size_t i = 0; i < set.items.size(); ++i) {
      const ItemResult* known = cache ? cache->find(key_of(set.items[i])) : nullptr;
      if (known != nullptr)
        results[i] = *known;
      else
        missing.push_back(i);
    }
    done = static_cast<int64_t>(set.items.size() - missing.size());
  }
  void finish(size_t item, ItemResult result) {
    result.id = set.items[item].id;
    result.task = set.items[item].task;
    if (cache) cache->add(key_of(set.items[item]), result);
    results[item] = std::move(result);
    if (progress) progress(++done, static_cast<int64_t>(set.items.size()));
  }
};

void run_generation(const TaskModel& model, Run& run) {
  std::optional<int32_t> open, close;  // the marks of the first family whose marks are tokens
  for (const ThinkingMarks& marks : thinking_tags())
    if (!open || !close) open = model.tokenizer->id_of(marks.begin), close = model.tokenizer->id_of(marks.end);
  std::vector<GenerationRequest> requests;
  std::vector<int64_t> prompt_tokens;
  for (size_t i : run.missing) {
    GenerationRequest r;
    r.prompt = model.prompt(conversation(run.set.items[i], run.set.examples));
    r.max_tokens = run.options.max_tokens;
    r.stop_ids = run.options.stop_ids;
    r.stop_strings = run.options.stop_strings;
    r.sampling = run.options.sampling;
    r.sampling.seed = seed_of(run.options.sampling.seed, run.set.items[i]);
    prompt_tokens.push_back(static_cast<int64_t>(r.prompt.size()));
    requests.push_back(std::move(r));
  }
  const auto finish = [&](int64_t request, const Generation& g) {
    const size_t i = run.missing[static_cast<size_t>(request)];
    ItemResult result;
    result.text = g.text;
    result.correct = is_correct(g.text, run.set.items[i], run.set.match, run.set.pattern);
    result.prompt_tokens = prompt_tokens[static_cast<size_t>(request)];
    result.output_tokens = static_cast<int64_t>(g.ids.size());
    result.thinking_tokens = count_thinking(g.ids, open, close);
    result.finish_reason = name_of(g.finish_reason);
    result.drafted = g.drafted, result.judged = g.judged, result.accepted = g.accepted;
    run.finish(i, std::move(result));
  };
  generate(*model.runner, std::move(requests),
           {.reading = run.options.mode,
            .max_sequences = run.options.max_sequences,
            .tokenizer = model.tokenizer,
            .special_in_text = true,
            .speculation = run.options.speculation,
            .on_finish = finish});
}

ItemResult judge_choices(const TaskItem& item, std::span<const ContinuationScore> scores) {
  ItemResult result;
  size_t best = 0, best_normalised = 0;
  const auto normalised = [&](size_t i) { return scores[i].log_likelihood / characters(item.choices[i]); };
  for (size_t i = 0; i < scores.size(); ++i) {
    result.log_likelihoods.push_back(scores[i].log_likelihood);
    result.greedy.push_back(scores[i].greedy);
    if (scores[i].log_likelihood > scores[best].log_likelihood) best = i;
    if (normalised(i) > normalised(best_normalised)) best_normalised = i;
  }
  result.chosen = static_cast<int>(best);
  result.correct = result.chosen == item.correct;
  result.correct_normalised = static_cast<int>(best_normalised) == item.correct;
  return result;
}

// Scores a block of questions at a time, so that the cache grows during the run.
void run_likelihood(const TaskModel& model, Run& run) {
  constexpr size_t kBlock = 32;
  for (size_t first = 0; first < run.missing.size(); first += kBlock) {
    const auto block = std::span(run.missing).subspan(first, std::min(kBlock, run.missing.size() - first));
    std::vector<Continuation> continuations;
    for (size_t i : block) {
      const TaskItem& item = run.set.items[i];
      for (size_t c = 0; c < item.choices.size(); ++c)
        continuations.push_back({choice_context(item, c, run.set.examples), " " + item.choices[c]});
    }
    const auto scores = score_continuations(*model.runner, *model.tokenizer, continuations, run.options.mode);
    size_t at = 0;
    for (size_t i : block) {
      const size_t count = run.set.items[i].choices.size();
      run.finish(i, judge_choices(run.set.items[i], std::span(scores).subspan(at, count)));
      at += count;
    }
  }
}

}  // namespace

std::vector<ChatMessage> conversation(const TaskItem& item, std::span<const TaskItem> examples) {
  std::vector<ChatMessage> messages;
  for (const TaskItem& e : examples) {
    if (e.task != item.task) continue;
    messages.push_back({"user", e.question});
    messages.push_back({"assistant", shown_answer(e)});
  }
  messages.push_back({"user", item.question});
  return messages;
}

std::string choice_context(const TaskItem& item, size_t choice, std::span<const TaskItem> examples) {
  std::string text;
  for (const TaskItem& e : examples)
    if (e.task == item.task) text += question_text(e, static_cast<size_t>(e.correct)) + " " + shown_answer(e) + "\n\n";
  return text + question_text(item, choice);
}

PromptBuilder chat_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatOptions& options) {
  return [&tokenizer, &chat, options](std::span<const ChatMessage> messages) {
    return tokenizer.encode(chat.render(messages, options), false);
  };
}

PromptBuilder plain_prompt(const Tokenizer& tokenizer) {
  return [&tokenizer](std::span<const ChatMessage> messages) {
    std::string text;
    for (const ChatMessage& m : messages) text += m.role == "assistant" ? " " + m.content + "\n\n" : m.content;
    return tokenizer.encode(text);
  };
}

std::vector<ItemResult> run_tasks(const TaskModel& model, const TaskSet& set, const TaskOptions& options,
                                  const ProgressCallback& progress) {
  Run run(set, options, progress);
  if (set.method == TaskMethod::generate)
    run_generation(model, run);
  else
    run_likelihood(model, run);
  return std::move(run.results);
}

int64_t count_thinking(std::span<const int32_t> ids, std::optional<int32_t> open, std::optional<int32_t> close) {
  if (!open || !close) return 0;
  const auto end = std::find(ids.begin(), ids.end(), *close);
  const auto begin = std::find(ids.begin(), end, *open);
  // The prompt's template may itself open the thinking; then the output contains only the end mark.
  if (begin == end) return end == ids.end() ? 0 : end - ids.begin();
  return end - begin - 1;
}

AnsweredText continued(const Tokenizer& tokenizer, const Continuation& c) {
  const size_t spaces = c.context.size() - (c.context.find_last_not_of(' ') + 1);
  const std::string context = c.context.substr(0, c.context.size() - spaces);
  const auto first = static_cast<int64_t>(tokenizer.encode(context).size());
  AnsweredText text{tokenizer.encode(context + std::string(spaces, ' ') + c.text), first};
  check(first >= 1 && first < static_cast<int64_t>(text.ids.size()),
        "\"{}\" after \"{}\" has no tokens of its own to score", c.text, c.context);
  return text;
}

std::vector<AnsweredText> answered_texts(const TaskModel& model, const TaskSet& set,
                                         std::span<const ItemResult> results, int64_t longest) {
  check(results.size() == set.items.size(), "{} answers to {} questions", results.size(), set.items.size());
  std::vector<AnsweredText> texts;
  for (size_t i = 0; i < results.size(); ++i) {
    const TaskItem& item = set.items[i];
    AnsweredText text;
    if (set.method == TaskMethod::likelihood) {
      const auto chosen = static_cast<size_t>(results[i].chosen);
      text = continued(*model.tokenizer, {choice_context(item, chosen, set.examples), " " + item.choices[chosen]});
    } else {
      text.ids = model.prompt(conversation(item, set.examples));
      text.first_scored = static_cast<int64_t>(text.ids.size());
      const std::vector<int32_t> answer = model.tokenizer->encode(results[i].text, false);
      text.ids.insert(text.ids.end(), answer.begin(), answer.end());
    }
    if (std::ssize(text.ids) > longest) text.ids.resize(static_cast<size_t>(longest));
    if (text.first_scored >= 1 && text.first_scored < std::ssize(text.ids)) texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<ContinuationScore> score_continuations(Runner& runner, const Tokenizer& tokenizer,
                                                   std::span<const Continuation> continuations, Activations mode,
                                                   const ProgressCallback& progress) {
  std::vector<AnsweredText> texts;
  std::vector<ScoredSequence> sequences;
  for (const Continuation& c : continuations) texts.push_back(continued(tokenizer, c));
  for (const AnsweredText& t : texts) sequences.push_back({t.ids, t.first_scored});

  const auto v = static_cast<size_t>(runner.config().v);
  std::vector<ContinuationScore> scores(texts.size(), {0, true, 0});
  const PassModel models[] = {{&runner, mode}};
  run_pass(
      models, sequences,
      [&](std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits) {
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto row = logits[0].subspan(i * v, v);
          ContinuationScore& score = scores[static_cast<size_t>(rows[i].sequence)];
          score.log_likelihood += static_cast<double>(row[static_cast<size_t>(rows[i].token)]) - log_sum_exp(row);
          score.greedy = score.greedy && argmax(row) == rows[i].token;
          ++score.tokens;
        }
      },
      progress);
  return scores;
}

std::vector<TaskSummary> summarise(std::span<const ItemResult> results) {
  std::vector<TaskSummary> summaries;
  for (const ItemResult& r : results) {
    auto found =
        std::find_if(summaries.begin(), summaries.end(), [&](const TaskSummary& s) { return s.task == r.task; });
    if (found == summaries.end()) {
      summaries.emplace_back().task = r.task;
      found = summaries.end() - 1;
    }
    ++found->items;
    found->correct += r.correct;
    found->correct_normalised += r.correct_normalised;
    found->output_tokens += static_cast<double>(r.output_tokens);
    found->thinking_tokens += static_cast<double>(r.thinking_tokens);
    found->drafted += r.drafted, found->judged += r.judged, found->accepted += r.accepted;
    if (!r.finish_reason.empty()) ++found->finish_reasons[r.finish_reason];
  }
  for (TaskSummary& s : summaries) {
    s.output_tokens /= static_cast<double>(s.items);
    s.thinking_tokens /= static_cast<double>(s.items);
  }
  return summaries;
}

json to_json(std::span<const ItemResult> results, const TaskSet& set, const TaskOptions& options) {
  json tasks = json::array();
  int64_t correct = 0;
  double mean_accuracy = 0;
  const auto summaries = summarise(results);
  for (const TaskSummary& s : summaries) {
    json task = {{"task", s.task}, {"items", s.items}, {"accuracy", to_json(s.accuracy())}};
    if (set.method == TaskMethod::likelihood) {
      task["accuracy_normalised"] = to_json(wilson(static_cast<double>(s.correct_normalised), s.items));
    } else {
      task["output_tokens"] = s.output_tokens;
      task["thinking_tokens"] = s.thinking_tokens;
      task["finish_reasons"] = s.finish_reasons;
      if (s.drafted > 0) task["draft"] = {{"drafted", s.drafted}, {"judged", s.judged}, {"accepted", s.accepted}};
    }
    tasks.push_back(task);
    correct += s.correct;
    mean_accuracy += s.accuracy().value / static_cast<double>(summaries.size());
  }
  return {{"tasks", tasks},
          {"accuracy", to_json(wilson(static_cast<double>(correct), std::ssize(results)))},
          {"mean_accuracy", mean_accuracy},
          {"settings", settings_json(set, options)}};
}

json to_json(const ItemResult& r) {
  json j = {{"id", r.id}, {"task", r.task}, {"correct", r.correct}};
  if (r.log_likelihoods.empty()) {
    j["text"] = r.text;
    j["prompt_tokens"] = r.prompt_tokens;
    j["output_tokens"] = r.output_tokens;
    j["thinking_tokens"] = r.thinking_tokens;
    j["finish_reason"] = r.finish_reason;
  } else {
    j["correct_normalised"] = r.correct_normalised;
    j["chosen"] = r.chosen;
    j["log_likelihoods"] = r.log_likelihoods;
    j["greedy"] = r.greedy;
  }
  return j;
}

ItemResult parse_item_result(const json& j) {
  ItemResult r;
  try {
    r.id = j.at("id");
    r.task = j.at("task");
    r.correct = j.at("correct");
    if (j.contains("text")) {
      r.text = j["text"];
      r.prompt_tokens = j.at("prompt_tokens");
      r.output_tokens = j.at("output_tokens");
      r.thinking_tokens = j.at("thinking_tokens");
      r.finish_reason = j.at("finish_reason");
    } else {
      r.correct_normalised = j.at("correct_normalised");
      r.chosen = j.at("chosen");
      r.log_likelihoods = j.at("log_likelihoods").get<std::vector<double>>();
      r.greedy = j.at("greedy").get<std::vector<bool>>();
    }
  } catch (const json::exception& e) {
    throw Error("a task result lacks something: {}", e.what());
  }
  return r;
}

}  // namespace fidelio
