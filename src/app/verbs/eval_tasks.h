// app: the part of the verb `eval` that puts questions to a model.
#pragma once
#include "app/options/questions.h"

namespace fidelio::app {

struct EvalTasks {
  Questions questions;
  Sampling sampling;
  int seeds = 1;
  std::string cache, against, csv;
};
CLI::Option* add_eval_tasks(CLI::App& verb, EvalTasks& options);  // returns --tasks
void eval_tasks(const RunOptions& run, const EvalTasks& options, const std::string& json, const std::string& page);

}  // namespace fidelio::app
