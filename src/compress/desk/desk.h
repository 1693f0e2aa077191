// A Desk holds what every step of one compression works with: the job, the source, the texts and the budget, none of
// which changes, and the accounts of time and of used text, which the steps keep. The runners are made later and apart
// from it (runners.h), since memory and size are checked first; measurer.h compares them on the texts.
#pragma once
#include "alloc/search.h"
#include "compress/desk/budget.h"
#include "compress/inputs/job_texts.h"
#include "compress/job.h"
#include "compress/preflight.h"
#include "compress/time_account.h"
#include "core/thread_pool.h"
#include "ranks/ranks.h"

namespace fidelio {

class Desk {
 public:
  // Reads the texts, which takes a while: the model itself writes some of them if the job asks for that.
  // Stand-ins for the model's own answers serve to foresee what a run takes, and not to make a model.
  Desk(const Job& job, const World& world, const Ranks& ranks, OwnAnswers own_answers = OwnAnswers::written)
      : Desk(job, world, ranks, read_texts(job, world, ranks, own_answers)) {}
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;

  const Job& job;
  const World& world;
  const Ranks& ranks;
  const Checkpoint& source;
  const std::vector<Target> targets;  // one empty target where a size, a speed or answers are asked for
  const std::vector<LinearGroup> groups;
  const JobTexts texts;
  const Budget budget;
  ThreadPool pool;
  TimeAccount time{"reading"};
  TextAccount uses;  // the text that the model is made, tried and chosen with

  void note(const std::string& text) const;  // Only the first rank passes it on to the user.
  RunnerOptions options(Activations mode) const;
  Activations table_mode() const;  // the activations with which sensitivities are measured
  CompressSize size() const;       // without codebooks, which the memory does not depend on
  // Returns the formats of those linears that do not stay as the source has them.
  std::map<LinearId, FormatSpec> quantised_formats(const SensitivityTable& table, const Plan& plan) const;
  // Names a stage of measurements with the candidates (sensitivity/journal.h).
  std::string stage(const std::string& what) const;

  // These two warn about a source that is quantised already, and about formats whose scales cannot hold the weights.
  void warn_of_codes() const;
  void warn_of_scales();

 private:
  Desk(const Job& job, const World& world, const Ranks& ranks, ReadTexts read);
};

// Returns the targets of a job: one for each EAR, or one with all that is asked for, which may be nothing.
std::vector<Target> targets_of(const Job& job);

}  // namespace fidelio
