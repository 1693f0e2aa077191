// This file is the part of the verb `eval` that puts questions to a model.
#pragma once
#include "app/options/draft.h"
#include "app/options/questions.h"

namespace fidelio::app {

struct EvalTasks {
  Questions questions;
  Sampling sampling;
  int seeds = 1;
  std::string cache, against, csv;
};
CLI::Option* add_eval_tasks(CLI::App& verb, EvalTasks& options);  // It returns --tasks.
// `draft` guesses tokens of the answers. The report says by task how many guesses were right.
void eval_tasks(const RunOptions& run, const EvalTasks& options, const DraftOptions& draft, const std::string& json,
                const std::string& page);

}  // namespace fidelio::app
