// This file tunes a copy that drafts towards the model that it drafts for (train/tune/tuner.h). Such a copy only needs
// to predict that model, so it is tuned on answers of the model and on text that the model writes from their
// beginnings. Formats and bytes stay as they are, and so do norms, which both share.
#pragma once
#include "app/options/common.h"
#include "runtime/dataset.h"
#include "train/tune/tuner.h"

namespace fidelio::app {

struct DraftTuning {
  bool on = false;
  int64_t steps = -1, windows = 0, samples = -1;  // They are as in train::TuneOptions and train::default_samples.
};

class CopyTuner {
 public:
  // `read` are windows of tokens, which the caller holds. `state` is the path, to which a name is added, where the
  // state of an interrupted run is found again; "" keeps none.
  CopyTuner(const RunOptions& run, const TextModel& model, const Dataset& read, const DraftTuning& how,
            std::string state);
  // Tunes the weights in place; they stay valid as long as this object. Returns a report: steps, kl_before, kl_after
  // (nats a token, on windows held out).
  nlohmann::json tune(const std::map<LinearId, FormatSpec>& formats, std::map<LinearId, LinearWeight>& weights);

 private:
  const train::TuneData& data();
  const RunOptions& run_;
  const TextModel& model_;
  const Dataset& read_;
  std::string state_;
  int64_t samples_, context_;
  train::TuneOptions options_;
  std::optional<train::TuneData> data_;
  std::vector<Checkpoint> copies_;  // These are untuned copies; weights that were not changed are views into them.
};

}  // namespace fidelio::app
