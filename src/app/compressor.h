// One compression from a folder to a certified checkpoint: candidates, sensitivities, search, certificate, file.
// Started under mpirun, all ranks make candidates and sensitivities together; the first alone searches and writes.
#pragma once
#include "alloc/search.h"
#include "app/certificate.h"
#include "app/common.h"
#include "app/compress_page.h"
#include "app/preflight.h"
#include "app/seconds.h"
#include "app/task_target.h"
#include "sensitivity/candidates.h"
#include "sensitivity/journal.h"

namespace fidelio::app {

struct CompressOptions {
  RunOptions run;
  double ear = 0, kl = 0, bits = 0, accuracy_drop = 0;  // what is asked for; 0 = not
  int64_t bytes = 0;
  std::string out, json, table, page, profile;
  std::string grouping = "fused", method = "single", allocate_by = "kl", search = "ilp";
  std::vector<std::string> calibration, texts, formats;
  Questions questions;
  bool keep_embedding = false, fresh = false, dry_run = false;
  int64_t tokens = 0, search_tokens = 0, samples = 0, context = 512;  // 0 tokens: as many as suit the model's size
  int permutations = 8, max_trials = 6, generations = 20;
  double target_se = 0, calibration_bits = 4;
  uint64_t seed = 0;
};

class Compressor {
 public:
  Compressor(const CompressOptions& o, const Ranks& ranks);
  // Memory before anything large is made; then time.
  nlohmann::json dry_run();
  nlohmann::json run();  // null on all ranks but the first

 private:
  RunnerOptions options(Activations mode) const;
  Activations table_mode() const;  // of the candidates while sensitivities are measured
  CompressSize size() const;
  std::map<std::string, std::string> job() const;
  void resume(const Journal& journal) const;
  void note(const std::string& text) const;
  void read_calibration();
  nlohmann::json foresee_memory();  // throws Error where it does not suffice

  SensitivityTable measure_table(const CandidateSet& candidates, Journal& journal);
  std::vector<MeterResult> measure_uniform(Players& players, const CandidateSet& candidates);
  FormatSpec measured_format(const std::vector<MeterResult>& uniform, const std::vector<CandidateGroup>& useful,
                             double base_kl, double wanted) const;
  void restore_reference();

  void build(const SensitivityTable& table, const Plan& plan, const CandidateSet& candidates, Journal& journal);
  void serve(Runner& runner) const;
  FidelityReport measure(std::span<const EvalText> texts);
  Plan search(const SensitivityTable& table, const std::vector<Plan>& front, const CandidateSet& candidates,
              Journal& journal);
  FidelityReport trial(const SensitivityTable& table, const Plan& plan, const CandidateSet& candidates,
                       Journal& journal, const std::string& what);
  Plan choose(const SensitivityTable& table, const std::vector<Plan>& front, const CandidateSet& candidates,
              Journal& journal);
  Plan evolved(const SensitivityTable& table, const Plan& start, const CandidateSet& candidates, Journal& journal);
  double kl_of_tasks(const SensitivityTable& table, const std::vector<Plan>& front, const CandidateSet& candidates,
                     Journal& journal);
  void check_tasks(const SensitivityTable& table, const Plan& plan);
  int64_t budget() const;  // bytes that all files may take, 0 without a budget
  int64_t header_bytes(const SensitivityTable& table, const Plan& plan, const CandidateSet& candidates) const;
  Plan within_budget(const SensitivityTable& table, const std::vector<Plan>& front, const CandidateSet& candidates,
                     Journal& journal);
  nlohmann::json finish(const SensitivityTable& table, const Plan& plan);
  void write_page(const SensitivityTable& table, const std::vector<Plan>& front, const Plan& plan,
                  const nlohmann::json& report);

  // Time since the last call, under the name of what was done.
  class Stopwatch {
   public:
    void lap(const std::string& name) {
      const Seconds now = Seconds::now();
      laps.emplace_back(name, now - last_);
      last_ = now;
    }
    std::vector<std::pair<std::string, Seconds>> laps;

   private:
    Seconds last_ = Seconds::now();
  };

  const CompressOptions& o_;
  const Ranks& ranks_;
  TextModel model_;
  ThreadPool pool_;
  int64_t context_ = 0, tokens_ = 0, search_tokens_ = 0;
  SplitTexts texts_;
  Target target_;
  std::vector<LinearGroup> groups_;
  std::vector<FormatSpec> formats_;
  Dataset calibration_, search_;
  std::unique_ptr<Runner> reference_, served_;
  std::map<LinearId, PackedLinear> original_, served_original_;  // of reference_, of served_
  std::vector<int> built_choice_;                                // the plan in force in served_, and its weights
  std::map<LinearId, LinearWeight> built_;
  std::unique_ptr<TaskTarget> tasks_;
  std::optional<FidelityReport> certified_;
  nlohmann::json task_report_;  // null without tasks
  int looks_ = 0;
  int64_t next_place_ = 0;  // of measurements after those of the table
  struct {
    std::vector<UniformPoint> uniform;
    std::vector<TrialPoint> trials;
    Stopwatch watch;
  } page_;  // what the report tells beside the results
};

}  // namespace fidelio::app
