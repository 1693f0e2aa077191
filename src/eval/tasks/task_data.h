// Questions with known answers, from the layouts they are published in.
//
// Our own, one JSON object a line:
//   {"id", "task", "question", "answer" [, "choices"]}      generate-and-match; `choices` is kept but not scored
// Public ones, recognised by their keys (JSONL, or one JSON array): ARC and OpenBookQA (AI2's nested and Hugging Face's
// flat form), PIQA (labels in the file or, as published, in a file beside it: X.jsonl, X-labels.lst), WinoGrande,
// HellaSwag, BoolQ, GSM8K, MATH-500, and the instruction form of LLM-Adapters (commonsense sets as {instruction,
// answer}). Prompts and scoring follow lm-evaluation-harness, so figures can be compared.
#pragma once
#include <string>
#include <vector>

namespace fidelio {

// generate: the model answers, the answer is extracted and compared. likelihood: each choice is scored as a
// continuation.
enum class TaskMethod : uint8_t { generate, likelihood };

// How an answer is taken from generated text (after the thinking, see answer_part) and compared with TaskItem::answer.
enum class Match : uint8_t {
  exact,         // the text, stripped
  after_marker,  // the number after the last `pattern`, e.g. "####"
  last_number,   // the last number in the text
  regex,         // the first group (or all) of the last match of `pattern` (Python's)
  boxed,         // the contents of the last \boxed{...}, compared after removing what does not change a formula
};

struct TaskItem {
  std::string id, task;
  std::string question;              // the user's turn; or the text before the choices
  std::string answer;                // what a generated answer is compared with
  std::string worked_answer;         // what a few-shot example shows, if not `answer` (GSM8K's solution)
  std::vector<std::string> choices;  // likelihood: what is scored
  std::vector<std::string>
      contexts;      // likelihood: the text before each choice, where it is not `question` (WinoGrande)
  int correct = -1;  // index into choices
};

struct TaskSet {
  std::string path, sha256;
  TaskMethod method = TaskMethod::generate;
  Match match = Match::exact;
  std::string pattern;  // of after_marker and regex
  std::vector<TaskItem> items;
  std::vector<TaskItem> examples{};  // few-shot: those of a question's own task are shown before it, answered
};

// The first `shots` questions of each task that `set` asks about, as its examples. Throws Error if `source` has fewer,
// is scored in another way, or holds a question of `set`, which would be asked with its answer in view.
void add_examples(TaskSet& set, const TaskSet& source, int64_t shots);

// Throws Error naming the file and line if it is no known layout or an item lacks something.
TaskSet read_tasks(const std::string& path);

}  // namespace fidelio
