#include "app/options/task_target.h"

#include <cmath>

#include <filesystem>

#include "core/hash.h"
#include "core/standard_error.h"
#include "eval/tasks/task_cache.h"

namespace fidelio::app {
namespace {

// Tells whether a question is one of calibration.
bool calibrates(const TaskItem& item) {
  return std::stoul(sha256_hex(item.question).substr(0, 8), nullptr, 16) % 3 == 0;
}

}  // namespace

TaskTarget::TaskTarget(const TextModel& model, const Questions& questions, const RunOptions& run, int seeds,
                       uint64_t seed, const std::string& folder)
    : model_(model), questions_(questions), folder_(folder) {
  const TaskSet set = read_questions(questions);
  halves_ = {Half{"calibration", set, {}}, Half{"check", set, {}}};
  for (Half& h : halves_)
    std::erase_if(h.asked.items, [&](const TaskItem& item) { return calibrates(item) != (&h == &halves_[0]); });
  check(!halves_[0].asked.items.empty() && !halves_[1].asked.items.empty(),
        "{}: {} questions are too few: one of three is asked to see what a loss of fidelity costs, two of three to see "
        "whether the accuracy is kept",
        questions.file, set.items.size());
  Sampling recommended;
  recommended.recommended = seeds > 0;
  SamplingOptions sampling = sampling_of(recommended, run.model);
  sampling.seed = seed;
  samplings_ = seeds_of(sampling, sampling.temperature > 0 && set.method == TaskMethod::generate ? seeds : 1);
  runner_ = make_runner(run, model.checkpoint, answering(runner_options(run), model, set, questions));
  for (Half& h : halves_) {
    h.reference = {"reference", 0, answers(h, "")};
    const bool any = std::any_of(h.reference.runs.begin(), h.reference.runs.end(), [](const auto& results) {
      return std::any_of(results.begin(), results.end(), [](const ItemResult& r) { return r.correct; });
    });
    check(any,
          "{}: the model itself answers none of the {} questions of the {} right, so there is no accuracy to keep; ask "
          "others, or give --ear",
          questions.file, h.asked.items.size(), h.name);
  }
}

// The journal outlives a change of target or questions, so a file of answers is named by what was asked, and of which
// model.
std::vector<std::vector<ItemResult>> TaskTarget::answers(const Half& half, const std::string& change) const {
  const Questions& q = questions_;
  std::vector<std::vector<ItemResult>> runs;
  for (const SamplingOptions& s : samplings_) {
    const std::string asked =
        fmt::format("{} {} {} {} {} {} {} {} {}", half.asked.sha256, fmt::join(q.tasks, ","), q.limit, q.max_tokens,
                    fmt::join(q.stops, ","), q.plain, text_of(s), s.seed, change);
    const std::string file = fmt::format("{}/answers-{}-{}.jsonl", folder_, half.name, sha256_hex(asked).substr(0, 12));
    if (std::filesystem::exists(file) && !TaskCache::is_one(file)) {  // The name of the file is ours.
      print_error(fmt::format("{} is damaged: it is made anew\n", file));
      std::filesystem::remove(file);
    }
    runs.push_back(answer_questions(*runner_, model_, half.asked, questions_, s, file, change).results);
  }
  return runs;
}

Estimate TaskTarget::recovery(QuestionSet set, const std::string& change, const std::function<void(Runner&)>& put,
                              double confidence) {
  put(*runner_);
  const std::vector<ModelRuns> models = {half(set).reference, {"plan", 0, answers(half(set), change)}};
  return recovery_table(models, {.confidence = confidence}).rows[1].mean_recovery;
}

Estimate TaskTarget::unchanged(QuestionSet set, double confidence) const {
  return recovery_table({&half(set).reference, 1}, {.confidence = confidence}).rows[0].mean_recovery;
}

std::vector<AnsweredText> TaskTarget::own_text(int64_t longest) const {
  const Half& h = half(QuestionSet::calibration);
  return answered_texts(asked_with(*runner_, model_, h.asked, questions_), h.asked, h.reference.runs[0], longest);
}

AskedQuestions TaskTarget::asked() const {
  return {halves_[0].asked.sha256, text_of(samplings_[0]), static_cast<int64_t>(halves_[0].asked.items.size()),
          static_cast<int64_t>(halves_[1].asked.items.size()), static_cast<int64_t>(samplings_.size())};
}

}  // namespace fidelio::app
