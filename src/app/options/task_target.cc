#include "app/options/task_target.h"

#include <cmath>

#include "core/hash.h"
#include "eval/studies/recovery.h"

namespace fidelio::app {

TaskTarget::TaskTarget(const TextModel& model, const Questions& questions, const RunOptions& run,
                       const std::string& folder)
    : model_(model), questions_(questions), set_(read_questions(questions)), folder_(folder) {
  runner_ = make_runner(run, model.checkpoint, answering(runner_options(run), model, set_, questions));
  reference_ = answers("answers-reference", "");
  const bool any = std::any_of(reference_.begin(), reference_.end(), [](const ItemResult& r) { return r.correct; });
  check(any,
        "{}: the model itself answers none of the {} questions right, so there is no accuracy to keep; ask others, or "
        "give --ear",
        questions.file, set_.items.size());
}

// The journal outlives a change of target or questions, so a file of answers is named by what was asked, and of whom.
std::vector<ItemResult> TaskTarget::answers(const std::string& name, const std::string& change) {
  const Questions& q = questions_;
  const std::string asked = fmt::format("{} {} {} {} {} {} {}", sha256_file(q.file), fmt::join(q.tasks, ","), q.limit,
                                        q.max_tokens, fmt::join(q.stops, ","), q.plain, change);
  const std::string file = fmt::format("{}/{}-{}.jsonl", folder_, name, sha256_hex(asked).substr(0, 12));
  return answer_questions(*runner_, model_, set_, questions_, {}, file, change).results;
}

Estimate TaskTarget::recovery(const std::string& name, const std::string& change,
                              const std::function<void(Runner&)>& put) {
  put(*runner_);
  const std::vector<ModelRuns> models = {{"reference", 0, {reference_}}, {"plan", 0, {answers(name, change)}}};
  return recovery_table(models).rows[1].mean_recovery;
}

}  // namespace fidelio::app
