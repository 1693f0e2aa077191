// This file reads questions with known answers, from the layouts in which they are published.
//
// Our own layout has one JSON object a line:
//   {"id", "task", "question", "answer" [, "choices"]}      answers are generated and matched; `choices` is not scored
// Public layouts are recognised by their keys, as JSONL or one JSON array: ARC and OpenBookQA (AI2's nested form and
// the flat form of Hugging Face), PIQA (with labels in the file or, as published, beside it: X.jsonl and
// X-labels.lst), WinoGrande, HellaSwag, BoolQ, GSM8K, MATH-500, and the instruction form of LLM-Adapters (commonsense
// sets as {instruction, answer}). Prompts and scoring follow lm-evaluation-harness, so that figures can be compared.
#pragma once
#include <string>
#include <vector>

namespace fidelio {

// A TaskMethod says how a question is answered: for `generate` the model writes an answer, which is extracted and
// compared; for `likelihood` each choice is scored as a continuation.
enum class TaskMethod : uint8_t { generate, likelihood };

// A Match says how an answer is taken from generated text (after any thinking, see answer_part) and compared with
// TaskItem::answer.
enum class Match : uint8_t {
  exact,         // the whole text, stripped
  after_marker,  // the number after the last `pattern`, for example "####"
  last_number,   // the last number in the text
  regex,         // the first group (or all) of the last match of `pattern`, in Python's syntax
  boxed,         // the contents of the last \boxed{...}, compared without what does not change a formula
};

struct TaskItem {
  std::string id, task;
  std::string question;              // the user's message, or the text before the choices
  std::string answer;                // the right answer, which a generated one is compared with
  std::string worked_answer;         // the text shown in a few-shot example if it is not `answer` (GSM8K's solution)
  std::vector<std::string> choices;  // for likelihood: the continuations that are scored
  // For likelihood, this is the text before each choice, if it is not `question` (as in WinoGrande).
  std::vector<std::string> contexts;
  int correct = -1;  // index into `choices` of the right one
};

struct TaskSet {
  std::string path, sha256;
  TaskMethod method = TaskMethod::generate;
  Match match = Match::exact;
  std::string pattern;  // the pattern of after_marker and regex
  std::vector<TaskItem> items;
  std::vector<TaskItem> examples{};  // few-shot examples; a question is preceded by those of its own task, with answers
};

// Makes the first `shots` questions of each task of `set` its examples. Throws Error if `source` has fewer, is scored
// in another way, or holds a question of `set`, which would then be asked with its answer in view.
void add_examples(TaskSet& set, const TaskSet& source, int64_t shots);

// Reads a file of questions. Throws Error, naming the file and line, if the layout is unknown or an item is
// incomplete.
TaskSet read_tasks(const std::string& path);

}  // namespace fidelio
