// This file sets a target in tasks instead of distance: how much of the reference's accuracy may be lost
// (compress/search/tasks.cc).
#pragma once
#include <array>
#include <functional>

#include "app/options/questions.h"
#include "compress/job.h"
#include "core/estimate.h"
#include "eval/studies/recovery.h"

namespace fidelio::app {

class TaskTarget final : public TaskJudge {
 public:
  // Puts the questions to the reference. It samples as its generation_config.json recommends, once for each of `seeds`,
  // or greedily where nothing is recommended or seeds is 0. All answers are kept in `folder` between runs. The SHA-256
  // of a question's words assigns one in three questions to calibration, so the same words are never in both sets.
  // Throws Error if either set is empty or answered wrongly throughout. The object refers to `model` and `questions`.
  TaskTarget(const TextModel& model, const Questions& questions, const RunOptions& run, int seeds, uint64_t seed,
             const std::string& folder);

  Estimate recovery(QuestionSet set, const std::string& change, const std::function<void(Runner&)>& put,
                    double confidence) override;
  Estimate unchanged(QuestionSet set, double confidence) const override;
  std::vector<AnsweredText> own_text(int64_t longest) const override;
  int64_t questions(QuestionSet set) const override { return std::ssize(half(set).asked.items); }
  AskedQuestions asked() const override;

 private:
  struct Half {
    const char* name;
    TaskSet asked;
    ModelRuns reference;
  };
  const Half& half(QuestionSet set) const { return halves_[static_cast<size_t>(set)]; }
  std::vector<std::vector<ItemResult>> answers(const Half& half, const std::string& change) const;

  const TextModel& model_;
  const Questions& questions_;
  std::string folder_;
  std::vector<SamplingOptions> samplings_;
  std::unique_ptr<Runner> runner_;
  std::array<Half, 2> halves_;  // The index is a QuestionSet.
};

}  // namespace fidelio::app
