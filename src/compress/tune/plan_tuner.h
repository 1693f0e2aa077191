// A PlanTuner moves the weights of a plan nearer to the source (train/tune/tuner.h). Formats and bytes stay the same.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "compress/desk/desk.h"
#include "compress/tune/tune_data.h"
#include "sensitivity/journal.h"

namespace fidelio {

// A PlanTuning says how a plan was tuned, as a checkpoint's provenance keeps it (docs/formats.md).
struct PlanTuning {
  std::string text_sha256;  // hash of the windows that it was tuned on
  int64_t steps = 0, windows = 0;
  double kl_before = 0, kl_after = 0;  // KL on windows that are held out
  double codes_moved = 0;              // the share of the codes that changed
  // Returns KL after over KL before, or 1 if there was nothing to gain.
  double gain() const { return kl_before > 0 ? kl_after / kl_before : 1; }
  bool operator==(const PlanTuning&) const = default;
};
nlohmann::json to_json(const PlanTuning& tuning);
PlanTuning plan_tuning_from_json(const nlohmann::json& json);

class PlanTuner {
 public:
  PlanTuner(Desk& desk, Journal& journal) : desk_(desk), journal_(journal) {}

  struct Tuned {
    std::map<LinearId, LinearWeight> weights;  // the weights that were given, tuned
    PlanTuning tuning;
  };
  // Tunes a plan. `name` names its files in the journal, where a run that was killed goes on. Norms, biases and dense
  // weights stay as they are. The text is the calibration's documents and samples of the source itself, never the
  // certificate's.
  Tuned tune(const std::string& name, const std::map<LinearId, FormatSpec>& formats,
             const std::map<LinearId, LinearWeight>& weights);

 private:
  const train::TuneData& data();
  Desk& desk_;
  Journal& journal_;
  std::optional<train::TuneData> data_;
  std::vector<Checkpoint> read_;  // the tuned weights are views into these
};

}  // namespace fidelio
