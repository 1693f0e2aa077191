// A target of tasks instead of distance: how much of the reference's accuracy may be lost (SLQ appendix A.3, Algorithm
// 2). Accuracy is counted at one plan of few bits; a line through that point and the origin says how much KL the drop
// allows, and the rest is a search to a KL.
#pragma once
#include <functional>

#include "app/options/questions.h"
#include "compress/job.h"
#include "core/estimate.h"

namespace fidelio::app {

class TaskTarget final : public TaskJudge {
 public:
  // The reference's answers; they and all others are kept in `folder` between runs. Throws Error if it answers nothing
  // right. Refers to `model` and `questions`.
  TaskTarget(const TextModel& model, const Questions& questions, const RunOptions& run, const std::string& folder);

  // Accuracy over the reference's, mean over tasks, bootstrapped by question, of the weights that `put` puts in force.
  // `name`: a file's name, of this plan alone; `change` says what differs from the model's files.
  Estimate recovery(const std::string& name, const std::string& change,
                    const std::function<void(Runner&)>& put) override;

  int64_t questions() const override { return static_cast<int64_t>(set_.items.size()); }
  const std::string& sha256() const override { return set_.sha256; }

 private:
  std::vector<ItemResult> answers(const std::string& name, const std::string& change);

  const TextModel& model_;
  const Questions& questions_;
  TaskSet set_;
  std::string folder_;
  std::unique_ptr<Runner> runner_;
  std::vector<ItemResult> reference_;
};

}  // namespace fidelio::app
