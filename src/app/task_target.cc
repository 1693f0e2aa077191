#include "app/task_target.h"

#include <cmath>

#include "eval/recovery.h"

namespace fidelio::app {

TaskTarget::TaskTarget(const TextModel& model, const Questions& questions, const RunOptions& run,
                       const std::string& folder)
    : model_(model), questions_(questions), set_(read_questions(questions)), folder_(folder) {
  runner_ = make_runner(run, model.checkpoint, answering(runner_options(run), model, set_, questions));
  reference_ = answers("answers-reference.jsonl", "");
  const bool any = std::any_of(reference_.begin(), reference_.end(), [](const ItemResult& r) { return r.correct; });
  check(any,
        "{}: the model itself answers none of the {} questions right, so there is no accuracy to keep; ask others, or "
        "give --ear",
        questions.file, set_.items.size());
}

std::vector<ItemResult> TaskTarget::answers(const std::string& name, const std::string& change) {
  return answer_questions(*runner_, model_, set_, questions_, {}, folder_ + "/" + name, change).results;
}

Estimate TaskTarget::recovery(const std::string& name, const std::string& change,
                              const std::function<void(Runner&)>& put) {
  put(*runner_);
  const std::vector<ModelRuns> models = {{"reference", 0, {reference_}}, {"plan", 0, {answers(name, change)}}};
  return recovery_table(models).rows[1].mean_recovery;
}

}  // namespace fidelio::app
