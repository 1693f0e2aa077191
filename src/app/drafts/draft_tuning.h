// A copy that drafts, moved towards the model it drafts for (train/tune/tuner.h): what the model would say is all that
// such a copy has to know, so it is tuned on answers of the model and on what the model writes when it goes on from their
// beginnings. Formats and bytes stay as they are, and so do norms, which both read.
#pragma once
#include "app/options/common.h"
#include "runtime/dataset.h"
#include "train/tune/tuner.h"

namespace fidelio::app {

struct DraftTuning {
  bool on = false;
  int64_t steps = -1, windows = 0, samples = -1;  // as train::TuneOptions and train::default_samples have them
};

class CopyTuner {
 public:
  // `read`: windows of tokens, held by the caller. `state`: where a run that was ended is found again, a path to which a
  // name is added; "": nowhere.
  CopyTuner(const RunOptions& run, const TextModel& model, const Dataset& read, const DraftTuning& how,
            std::string state);
  // The weights as they are to be, which last as long as this does, and about it: steps, kl_before, kl_after (nats a
  // token, on windows held out).
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
  std::vector<Checkpoint> copies_;  // untuned: weights that were left alone are views into them
};

}  // namespace fidelio::app
