#include "app/drafts/draft_tuning.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/tune/run_tuner.h"
#include "compress/tune/tune_data.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/standard_error.h"
#include "io/checkpoint_write.h"

namespace fidelio::app {

CopyTuner::CopyTuner(const RunOptions& run, const TextModel& model, const Dataset& read, const DraftTuning& how,
                     std::string state)
    : run_(run),
      model_(model),
      read_(read),
      state_(std::move(state)),
      samples_(how.samples >= 0 ? how.samples : train::default_samples(on_gpu(run))),
      context_(window_length("--context", 0, model.checkpoint.config())) {
  train::check_known(model.checkpoint.config(), on_gpu(run));
  options_.steps = how.steps, options_.windows = how.windows;
  options_.dense = false;
  train::set_defaults(options_, on_gpu(run), context_);
}

const train::TuneData& CopyTuner::data() {
  if (data_) return *data_;
  TuneText text;
  text.samples = samples_;
  text.held = std::min(text.held, (read_.tokens + samples_) / 8);
  const TuneSource from{model_.checkpoint, model_.tokenizer, model_.chat ? &*model_.chat : nullptr,
                        [&](const RunnerOptions& options) { return make_runner(run_, model_.checkpoint, options); }};
  return data_.emplace(
      tune_data_of(read_, text, from, runner_options(run_), on_gpu(run_), context_, options_.seed, Ranks()));
}

nlohmann::json CopyTuner::tune(const std::map<LinearId, FormatSpec>& formats,
                               std::map<LinearId, LinearWeight>& weights) {
  const TemporaryFolder folder(
      (state_.empty() ? (std::filesystem::temp_directory_path() / "fidelio-draft").string() : state_) + ".untuned");
  const std::string untuned = folder.path() + "/untuned";
  write_checkpoint(
      untuned, model_.checkpoint, formats, [&](LinearId id) { return weights.at(id); }, nlohmann::json::object());
  const Checkpoint& copy = copies_.emplace_back(Checkpoint::open(untuned));
  train::TuneOptions how = options_;
  if (!state_.empty())  // A run with other options finds no state there.
    how.state =
        state_ + "-" + sha256_hex(train::job_of(copy, model_.checkpoint, data(), how).dump()).substr(0, 8) + ".tuning";
  put_aside_damaged_state(how.state, [](const std::string& text) { print_error(text + "\n"); });
  train::TuneResult result = run_tuner(copy, model_.checkpoint, data(), how, on_gpu(run_), runner_options(run_));
  for (auto& [id, weight] : weights) weight = std::move(result.weights.linears.at(id));
  if (!how.state.empty()) std::filesystem::remove(how.state);
  const train::TuneReport& r = result.report;
  return {{"steps", r.best_step}, {"kl_before", r.kl_before}, {"kl_after", r.kl_after}};
}

}  // namespace fidelio::app
