// This file finds where a model's answers depart from texts that another program made with the same weights, and by
// how much. At the first token that differs it gives the model's own logits of both tokens. A difference of the size
// of rounding is a tie that fell the other way; a large one is a mistake.
#pragma once
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "eval/report/table.h"
#include "eval/tasks/tasks.h"

namespace fidelio {

// Reads answers by question id from lines of {"id", "text"}, as in models/data/tasks-greedy.jsonl. Throws Error
// naming the line.
std::map<std::string, std::string> read_answers(const std::string& path);

struct TextDifference {
  std::string task, id;
  int64_t position = 0;  // in tokens of the answer, from 0
  // The two tokens at that position. The end of a text is the stop token; -1 means that the model was cut off there.
  int32_t own = -1, other = -1;
  float own_logit = 0, other_logit = 0;  // NaN if there is no token
};

struct TextComparison {
  int64_t compared = 0;
  std::vector<TextDifference> differences;  // in the order of the questions
  Estimate equal() const;                   // share of equal texts, with Wilson's interval
};

// Compares `results`, which run_tasks gave for `set`, with `others`. Positions count the tokens of the texts as
// tokenised, which are the generated ones unless the model spelt a text in an unusual way. Throws Error naming a
// question whose text `others` lacks.
TextComparison compare_texts(const TaskModel& model, const TaskSet& set, const TaskOptions& options,
                             std::span<const ItemResult> results, const std::map<std::string, std::string>& others);

Table to_table(const TextComparison& comparison, const Tokenizer& tokenizer, const std::string& reference);
nlohmann::json to_json(const TextComparison& comparison, const Tokenizer& tokenizer);

}  // namespace fidelio
