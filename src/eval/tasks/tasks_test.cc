#include "eval/tasks/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/test_support.h"
#include "runtime/fake_runner.h"

namespace fidelio {
namespace {

using testing::HasSubstr;

const Tokenizer& task_tokenizer() {
  static const Tokenizer t = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-26m");
  return t;
}
const ChatTemplate& chat() {
  static const ChatTemplate t = *ChatTemplate::load(FIDELIO_SOURCE_DIR "/models/quill-26m");
  return t;
}

FakeRunner task_runner(int64_t rows = 128) {
  RunnerOptions options;
  options.max_rows = rows;
  options.max_logit_rows = 32;
  options.cache_tokens = 1024;
  return FakeRunner({.vocabulary = task_tokenizer().vocab_size(), .context = 128}, options);
}

TaskSet questions(int count) {
  TaskSet set;
  set.sha256 = "digest";
  for (int i = 0; i < count; ++i) {
    TaskItem item;
    item.id = fmt::format("q{}", i);
    item.task = i % 3 == 0 ? "counting" : "naming";
    item.question = fmt::format("What comes after {}?", i);
    item.answer = "nobody knows";
    set.items.push_back(item);
  }
  return set;
}

std::vector<std::string> texts_of(const std::vector<ItemResult>& results) {
  std::vector<std::string> all;
  for (const ItemResult& r : results) all.push_back(r.text);
  return all;
}

TEST(Tasks, PromptsFollowTheTemplate) {
  const std::vector<ChatMessage> messages = {{"user", "How?"}};
  EXPECT_EQ(chat_prompt(task_tokenizer(), chat())(messages),
            task_tokenizer().encode("<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\n", false));
  const std::vector<ChatMessage> shots = {
      {"user", "Question: 1?\nAnswer:"}, {"assistant", "one"}, {"user", "Question: 2?\nAnswer:"}};
  EXPECT_EQ(plain_prompt(task_tokenizer())(shots),
            task_tokenizer().encode("Question: 1?\nAnswer: one\n\nQuestion: 2?\nAnswer:"));
}

TEST(Tasks, ExamplesOfTheOwnTaskStandBeforeTheQuestion) {
  TaskItem item, example, stranger;
  item.task = example.task = "sums";
  item.question = "2 + 2?";
  example.question = "1 + 1?";
  example.answer = "2";
  stranger.task = "names";
  const std::vector<TaskItem> examples = {stranger, example};
  const auto messages = conversation(item, examples);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].content, "1 + 1?");
  EXPECT_EQ(messages[1].role, "assistant");
  EXPECT_EQ(messages[1].content, "2");
  EXPECT_EQ(messages[2].content, "2 + 2?");
  // A WinoGrande example shows the right option in the blank's place.
  TaskItem blank;
  blank.task = "sums";
  blank.question = "The cat saw the dog, so _ ran.";
  blank.contexts = {"The cat saw the dog, so the cat", "The cat saw the dog, so the dog"};
  blank.choices = {"ran.", "ran."};
  blank.correct = 1;
  blank.answer = "ran.";
  EXPECT_EQ(choice_context(item, 0, std::span(&blank, 1)), "The cat saw the dog, so the dog ran.\n\n2 + 2?");
  EXPECT_EQ(choice_context(blank, 0, {}), "The cat saw the dog, so the cat");
}

TEST(Tasks, ExamplesChangeAnswersAndAreNamedInTheSettings) {
  TaskSet set = questions(1);
  TaskOptions options;
  options.max_tokens = 4;
  FakeRunner runner = task_runner();
  const TaskModel model{&runner, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())};
  const auto bare = run_tasks(model, set, options);
  const auto bare_settings = to_json(bare, set, options)["settings"];
  set.examples = questions(4).items;
  set.examples.erase(set.examples.begin());  // one example remains for q1 and q2; q3 has the same task as q0
  const auto shown = run_tasks(model, set, options);
  EXPECT_GT(shown[0].prompt_tokens, bare[0].prompt_tokens);
  const auto settings = to_json(shown, set, options)["settings"];
  EXPECT_NE(settings, bare_settings);
  set.examples[2].answer = "another";
  EXPECT_NE(to_json(shown, set, options)["settings"], settings);
}

TEST(Tasks, AnswersDoNotDependOnBatchingAndSamplingDiffersByQuestionAndSeed) {
  const TaskSet set = questions(12);
  TaskOptions options;
  options.max_tokens = 12;
  FakeRunner one = task_runner(), other = task_runner(20);
  const auto greedy = run_tasks({&one, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())}, set, options);
  options.max_sequences = 3;
  EXPECT_EQ(texts_of(run_tasks({&other, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())}, set, options)),
            texts_of(greedy));

  options.sampling.temperature = 1;
  options.sampling.seed = 1;
  const auto first = run_tasks({&one, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())}, set, options);
  EXPECT_EQ(texts_of(run_tasks({&other, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())}, set, options)),
            texts_of(first));
  options.sampling.seed = 2;
  EXPECT_NE(texts_of(run_tasks({&one, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())}, set, options)),
            texts_of(first));

  TaskSet twins = questions(1);
  twins.items.push_back(twins.items[0]);
  twins.items[1].id = "the same question again";
  const auto answers = run_tasks({&one, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())}, twins, options);
  EXPECT_NE(answers[0].text, answers[1].text);
}

TEST(Tasks, MarksWhatIsRight) {
  TaskSet set = questions(4);
  TaskOptions options;
  options.max_tokens = 5;
  FakeRunner runner = task_runner();
  const TaskModel model{&runner, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())};
  const auto before = run_tasks(model, set, options);
  for (const ItemResult& r : before) EXPECT_FALSE(r.correct);
  set.match = Match::regex;  // matches the first word of the model's answer to question 2
  set.pattern = "^\\s*(\\S+)";
  std::istringstream words(before[2].text);
  words >> set.items[2].answer;
  ASSERT_FALSE(set.items[2].answer.empty());
  const auto after = run_tasks(model, set, options);
  EXPECT_TRUE(after[2].correct);
  EXPECT_EQ(after[2].output_tokens, 5);
  EXPECT_EQ(after[2].finish_reason, "length");
  EXPECT_GT(after[2].prompt_tokens, 5);
}

TEST(Tasks, ThinkingIsSeenWhereItsMarksAreSpecialTokens) {
  TaskOptions options;
  options.max_tokens = 5;
  options.sampling.logit_bias = {{*task_tokenizer().id_of("<think>"), 1000.f}};
  FakeRunner runner = task_runner();
  const ItemResult r =
      run_tasks({&runner, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())}, questions(1), options)[0];
  EXPECT_TRUE(task_tokenizer().is_special(*task_tokenizer().id_of("<think>")));
  EXPECT_THAT(r.text, HasSubstr("<think>"));
  EXPECT_EQ(r.thinking_tokens, 4);
}

TEST(Tasks, CountsThinking) {
  const std::vector<int32_t> ids = {5, 1, 7, 7, 7, 2, 8};
  EXPECT_EQ(count_thinking(ids, 1, 2), 3);
  EXPECT_EQ(count_thinking(std::span(ids).first(5), 1, 2), 3);    // generation was cut off while the model was thinking
  EXPECT_EQ(count_thinking(std::span(ids).subspan(2), 1, 2), 3);  // the template opened the thinking
  EXPECT_EQ(count_thinking(std::span(ids).last(1), 1, 2), 0);
  EXPECT_EQ(count_thinking(ids, std::nullopt, 2), 0);
}

class CachedTasks : public testing::Test {
 protected:
  void SetUp() override {
    options_.max_tokens = 6;
    options_.cache = folder_ + "/results.jsonl";
    options_.model_identity = "fake";
  }
  std::vector<ItemResult> run(int questions_count, FakeRunner& runner) {
    return run_tasks({&runner, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())}, questions(questions_count),
                     options_);
  }
  const ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
  TaskOptions options_;
};

TEST_F(CachedTasks, AnInterruptedRunGoesOn) {
  FakeRunner runner = task_runner();
  const auto all = run(10, runner);
  std::string text = read_text_file(options_.cache);
  // Half of the file is kept, so that its last line is broken.
  text.resize(text.size() / 2);
  ASSERT_NE(text.back(), '\n');
  std::ofstream(options_.cache, std::ios::binary | std::ios::trunc) << text;
  FakeRunner again = task_runner();
  EXPECT_EQ(texts_of(run(10, again)), texts_of(all));
  EXPECT_GT(again.steps.size(), 0u);
  FakeRunner idle = task_runner();
  const auto cached = run(10, idle);
  EXPECT_EQ(texts_of(cached), texts_of(all));
  EXPECT_EQ(cached[3].thinking_tokens, all[3].thinking_tokens);
  EXPECT_EQ(idle.steps.size(), 0u);
}

TEST_F(CachedTasks, RefusesResultsOfOtherSettings) {
  FakeRunner runner = task_runner();
  run(3, runner);
  options_.model_identity = "another model";
  try {
    run(3, runner);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("other settings"));
  }
  options_.cache = folder_ + "/none/results.jsonl";
  EXPECT_THROW(run(3, runner), Error);
  // A file that is not a cache stays as it is, including a last line without an end.
  options_.cache = folder_ + "/notes.txt";
  for (const char* notes : {"hello\n", "hello", "hello\nthere"}) {
    write_file_atomically(options_.cache, notes);
    EXPECT_THROW(run(3, runner), Error);
    EXPECT_EQ(read_text_file(options_.cache), notes);
  }
}

double log_likelihood_by_definition(FakeRunner& runner, const std::string& context, const std::string& text) {
  const auto whole = task_tokenizer().encode(context + text);
  double sum = 0;
  for (size_t i = task_tokenizer().encode(context).size(); i < whole.size(); ++i) {
    const auto logits = runner.logits_after(std::span(whole).first(i));
    double total = 0;
    for (float x : logits) total += std::exp(static_cast<double>(x));
    sum += static_cast<double>(logits[static_cast<size_t>(whole[i])]) - std::log(total);
  }
  return sum;
}

TEST(Likelihood, EqualsTheDefinition) {
  FakeRunner runner = task_runner(16);
  const std::vector<Continuation> continuations = {
      {"The sky is", " blue and wide"}, {"The sky is", " green"}, {"One two three", " four"}};
  const auto scores = score_continuations(runner, task_tokenizer(), continuations, Activations::f32);
  for (size_t i = 0; i < scores.size(); ++i)  // exps are FP32 with an error of 2e-7, and there are only a few tokens
    EXPECT_NEAR(scores[i].log_likelihood,
                log_likelihood_by_definition(runner, continuations[i].context, continuations[i].text), 1e-5);
  // Spaces at the context's end belong to the continuation.
  const std::vector<Continuation> moved = {{"The sky is ", "green"}};
  EXPECT_EQ(score_continuations(runner, task_tokenizer(), moved, Activations::f32)[0].log_likelihood,
            scores[1].log_likelihood);
  const std::vector<Continuation> nothing = {{"The sky is", ""}};
  EXPECT_THROW(score_continuations(runner, task_tokenizer(), nothing, Activations::f32), Error);
}

TEST(Likelihood, ChoosesTheLikeliestAndTheLikeliestPerCharacter) {
  FakeRunner runner = task_runner();
  TaskSet set;
  set.method = TaskMethod::likelihood;
  TaskItem item;
  item.id = "1";
  item.task = "choices";
  item.question = "The sky is";
  item.choices = {"blue", "documentation files", "grün"};
  set.items = {item};
  std::vector<double> expected, normalised;
  for (const std::string& choice : item.choices) {
    expected.push_back(log_likelihood_by_definition(runner, item.question, " " + choice));
    normalised.push_back(expected.back() / (choice == "grün" ? 4 : static_cast<double>(choice.size())));
  }
  const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
  const auto best_normalised = std::max_element(normalised.begin(), normalised.end()) - normalised.begin();
  ASSERT_NE(best, best_normalised);
  for (int correct = 0; correct < 3; ++correct) {
    set.items[0].correct = correct;
    const ItemResult r = run_tasks({&runner, &task_tokenizer(), {}}, set, {.mode = Activations::f32})[0];
    EXPECT_EQ(r.chosen, best);
    EXPECT_EQ(r.correct, correct == best);
    EXPECT_EQ(r.correct_normalised, correct == best_normalised);
  }
}

// The text is the prompt as it was put and the answer after it, cut at the given length. For choices it contains the
// one that was chosen.
TEST(Tasks, OwnTextIsPromptAndAnswer) {
  FakeRunner runner = task_runner();
  const TaskModel model{&runner, &task_tokenizer(), chat_prompt(task_tokenizer(), chat())};
  const TaskSet set = questions(3);
  std::vector<ItemResult> results(3);
  results[0].text = "nobody knows";
  results[2].text = "one";  // the second question got no answer
  const auto all = answered_texts(model, set, results, 100);
  ASSERT_EQ(all.size(), 2u);
  const std::vector<int32_t> prompt = model.prompt(conversation(set.items[0], {})),
                             answer = task_tokenizer().encode("nobody knows", false);
  ASSERT_GE(answer.size(), 2u);
  EXPECT_EQ(all[0].first_scored, std::ssize(prompt));
  std::vector<int32_t> both = prompt;
  both.insert(both.end(), answer.begin(), answer.end());
  EXPECT_EQ(all[0].ids, both);
  const auto cut = answered_texts(model, set, results, std::ssize(prompt) + 1);
  ASSERT_FALSE(cut.empty());
  EXPECT_EQ(cut[0].ids, std::vector<int32_t>(both.begin(), both.begin() + std::ssize(prompt) + 1));
  EXPECT_TRUE(answered_texts(model, set, results, 3).empty());

  TaskSet choices;
  choices.method = TaskMethod::likelihood;
  choices.items = {TaskItem{}};
  choices.items[0].question = "The sky is";
  choices.items[0].choices = {"green", "blue and wide"};
  ItemResult chosen;
  chosen.chosen = 1;
  const auto text = answered_texts(model, choices, std::span(&chosen, 1), 100);
  ASSERT_EQ(text.size(), 1u);
  EXPECT_EQ(text[0].ids, task_tokenizer().encode("The sky is blue and wide"));
  EXPECT_EQ(text[0].first_scored, std::ssize(task_tokenizer().encode("The sky is")));
}

TEST(Tasks, ReportCountsByTask) {
  std::vector<ItemResult> results(5);
  for (size_t i = 0; i < 5; ++i) {
    results[i].task = i < 2 ? "b" : "a";
    results[i].correct = i != 0;
    results[i].output_tokens = static_cast<int64_t>(i);
    results[i].finish_reason = i == 4 ? "length" : "stop";
  }
  const auto summaries = summarise(results);
  ASSERT_EQ(summaries.size(), 2u);
  EXPECT_EQ(summaries[0].task, "b");
  EXPECT_EQ(summaries[0].correct, 1);
  EXPECT_EQ(summaries[1].output_tokens, 3);
  EXPECT_EQ(summaries[1].finish_reasons.at("length"), 1);
  const nlohmann::json j = to_json(results, questions(1), {});
  EXPECT_DOUBLE_EQ(j["accuracy"]["value"], 0.8);
  EXPECT_DOUBLE_EQ(j["mean_accuracy"], 0.75);
  EXPECT_DOUBLE_EQ(j["tasks"][1]["accuracy"]["value"], 1);
  EXPECT_THROW(parse_item_result(nlohmann::json{{"id", "x"}}), Error);
}

}  // namespace
}  // namespace fidelio
