// Where a model's answers depart from texts that another program made with the same weights, and by how much: at the
// first token that differs, the model's own logits of its token and of the other's. A difference of the size of
// rounding is a tie that fell the other way; a large one is a mistake.
#pragma once
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "eval/report/table.h"
#include "eval/tasks/tasks.h"

namespace fidelio {

// By question id: {"id", "text"} a line, as models/data/tasks-greedy.jsonl. Throws Error naming the line.
std::map<std::string, std::string> read_answers(const std::string& path);

struct TextDifference {
  std::string task, id;
  int64_t position = 0;          // in tokens of the answer, from 0
  int32_t own = -1, other = -1;  // the tokens there; a text's end is the stop token, -1 where the model was cut off
  float own_logit = 0, other_logit = 0;  // NaN of no token
};

struct TextComparison {
  int64_t compared = 0;
  std::vector<TextDifference> differences;  // in the order of the questions
  Estimate equal() const;                   // share of equal texts, Wilson's interval
};

// `results` as run_tasks gave them for `set`. Positions are those of the texts' own tokens, which are what the model
// generated unless it spelt a text in an unusual way. Throws Error naming a question whose text `others` lacks.
TextComparison compare_texts(const TaskModel& model, const TaskSet& set, const TaskOptions& options,
                             std::span<const ItemResult> results, const std::map<std::string, std::string>& others);

Table to_table(const TextComparison& comparison, const Tokenizer& tokenizer, const std::string& reference);
nlohmann::json to_json(const TextComparison& comparison, const Tokenizer& tokenizer);

}  // namespace fidelio
