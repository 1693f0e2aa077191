// The weights of a plan moved nearer to the source (train/tune/tuner.h): the same formats, the same bytes.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "compress/desk/desk.h"
#include "compress/tune/tune_data.h"
#include "sensitivity/journal.h"

namespace fidelio {

// PlanTuning says how a plan was tuned, as a checkpoint's provenance keeps it (docs/formats.md).
struct PlanTuning {
  std::string text_sha256;  // of the windows
  int64_t steps = 0, windows = 0;
  double kl_before = 0, kl_after = 0;  // on windows held out of the tuning
  double codes_moved = 0;              // the share of the codes that changed
  // Returns KL after over KL before; 1 where there was nothing to gain.
  double gain() const { return kl_before > 0 ? kl_after / kl_before : 1; }
  bool operator==(const PlanTuning&) const = default;
};
nlohmann::json to_json(const PlanTuning& tuning);
PlanTuning plan_tuning_from_json(const nlohmann::json& json);

class PlanTuner {
 public:
  PlanTuner(Desk& desk, Journal& journal) : desk_(desk), journal_(journal) {}

  struct Tuned {
    std::map<LinearId, LinearWeight> weights;  // those that were given
    PlanTuning tuning;
  };
  // `name`: of the plan, for files in the journal, where a run that was killed goes on. Norms, biases and what stays
  // dense are left alone. The text is the calibration's documents and the source's own samples, never the certificate's.
  Tuned tune(const std::string& name, const std::map<LinearId, FormatSpec>& formats,
             const std::map<LinearId, LinearWeight>& weights);

 private:
  const train::TuneData& data();
  Desk& desk_;
  Journal& journal_;
  std::optional<train::TuneData> data_;
  std::vector<Checkpoint> read_;  // what weights of this are views into
};

}  // namespace fidelio
